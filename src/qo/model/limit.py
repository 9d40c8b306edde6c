"""Limits that apply across all workers of a store."""

from msgspec import Struct

from qo.errors import InvalidTask
from qo.model.check import MAX_LIMIT, check_number
from qo.model.group import make_group
from qo.model.text import is_a, show

_KEY_LENGTH = 64  # characters of the name of an argument


class Limit(Struct, frozen=True, kw_only=True):
    """How many tasks of a type run at a time, and how many start within `per` seconds, across all workers.

    With a `key`, the name of an argument, the limit applies separately to each value of this argument.
    """

    concurrency: int = 0  # 0: no limit
    rate: float = 0.0  # starts within any `per` seconds; 0: no limit
    per: float = 1.0  # seconds
    key: str | None = None


def check_limit(limit: Limit, field: str = "limit") -> Limit:
    """Raise InvalidTask for an invalid limit. The message names the option."""
    if not isinstance(limit, Limit):
        raise InvalidTask(field, f"{show(limit)} is not a qo.Limit")
    if not is_a(limit.concurrency, int) or not 0 <= limit.concurrency <= MAX_LIMIT:
        problem = f"{show(limit.concurrency)} is not a whole number from 1 to {MAX_LIMIT:,}"
        raise InvalidTask(f"{field}.concurrency", problem)
    check_number(f"{field}.per", limit.per, above=0.0)
    check_number(f"{field}.rate", limit.rate, maximum=1e6)
    if limit.rate != int(limit.rate):
        problem = f"{show(limit.rate)} is not a whole number of starts within `per` seconds; use a longer `per`"
        raise InvalidTask(f"{field}.rate", problem)
    if limit.key is not None:
        check_key(f"{field}.key", limit.key)
    return limit


def check_declared(limit: Limit) -> Limit:
    """As `check_limit`, for a limit in code: it must limit something."""
    check_limit(limit)
    if limit.concurrency == 0 and limit.rate == 0:
        raise InvalidTask("limit", "limits nothing: pass concurrency= or rate=, at least 1")
    return limit


def check_key(field: str, key: str) -> str:
    if not is_a(key, str) or not key.isidentifier() or not key.isascii() or len(key) > _KEY_LENGTH:
        raise InvalidTask(field, f"{show(key)} is not the name of an argument of at most {_KEY_LENGTH} characters")
    return key


def group_by(limit: Limit | None, fair_by: str | None) -> str | None:
    """The argument whose value is the group of a task. Raises InvalidTask if there are two."""
    key = limit.key if limit is not None else None
    if fair_by is not None:
        check_key("fair_by", fair_by)
        if key is not None and key != fair_by:
            raise InvalidTask("fair_by", f"{show(fair_by)} differs from limit.key, {show(key)}; a task has one group")
    return key or fair_by


def group_of(key: str, arguments: object, field: str) -> str:
    """The group of a task with these arguments, by name."""
    if not isinstance(arguments, dict) or key not in arguments:
        raise InvalidTask(field, f"{show(key)} is not an argument of this task; every task must have it")
    return make_group(key, arguments[key])
