"""Uniqueness: which submissions duplicate an earlier task, and what happens to them."""

from hashlib import sha256
from typing import Any, Literal, Protocol, get_args

import msgspec
from msgspec import Struct

from qo.errors import InvalidTask
from qo.model.change import Change, Guard
from qo.model.check import UNREADABLE, check_number
from qo.model.group import group_in
from qo.model.ranking import STRICT
from qo.model.task import NewTask, Status
from qo.model.text import is_a, show

UniqueUntil = Literal["started", "finished"]
OnDuplicate = Literal["keep", "replace", "raise"]
_RAW = b"\x00"  # the first byte of raw data; see qo.codec
_KEY_LENGTH = 40  # hex digits


class TimedeltaLike(Protocol):
    """A timedelta. This module does not import `datetime`, which can read the clock."""

    def total_seconds(self) -> float: ...


class Unique(Struct, frozen=True, kw_only=True):
    """At most one task of a queue and type with the same arguments.

    It is unique until it has started or finished, and for at least `within` seconds after it was submitted.
    """

    by: tuple[str, ...] | str = "args"  # names of arguments, or "args": all of them
    within: float | TimedeltaLike | None = None  # seconds, or a timedelta
    until: UniqueUntil = "finished"
    on_duplicate: OnDuplicate = "keep"

    @property
    def window(self) -> float:
        if self.within is None or isinstance(self.within, int | float):
            return self.within or 0.0
        return self.within.total_seconds()


def check_unique(unique: Unique) -> Unique:
    """Raise InvalidTask for invalid options. The message names the option."""
    if not isinstance(unique, Unique):
        raise InvalidTask("unique", f"{show(unique)} is not a qo.Unique")
    by = unique.by
    if by != "args" and (not isinstance(by, tuple | list) or not by or not all(is_a(name, str) for name in by)):
        raise InvalidTask("unique.by", f'{show(by)} must be "args" or names of arguments such as ("customer_id",)')
    if unique.within is not None:
        if not hasattr(unique.within, "total_seconds") and not is_a(unique.within, int, float):
            raise InvalidTask("unique.within", f"{show(unique.within)} is neither seconds nor a timedelta")
        check_number("unique.within", unique.window, above=0.0)
    _check_word("unique.until", unique.until, UniqueUntil)
    _check_word("unique.on_duplicate", unique.on_duplicate, OnDuplicate)
    return unique


def _check_word(field: str, word: object, words: Any) -> None:
    if word not in get_args(words):
        raise InvalidTask(field, f"{show(word)} is not one of: {', '.join(get_args(words))}")


def unique_key(unique: Unique, payload: bytes) -> str:
    """The key of all tasks that have the chosen arguments of this payload. The scope is a queue and a type."""
    chosen = payload if payload[:1] == _RAW and unique.by == "args" else _chosen(unique, payload)
    return f"unique:{sha256(chosen).hexdigest()[:_KEY_LENGTH]}"


def _chosen(unique: Unique, payload: bytes) -> bytes:
    try:
        value = None if payload[:1] == _RAW else msgspec.json.decode(payload)
    except UNREADABLE as error:
        raise InvalidTask("payload", f"is not JSON: {error}") from error
    if unique.by == "args":
        return msgspec.json.encode(value, order="deterministic")
    arguments = value if isinstance(value, dict) else {}
    missing = [name for name in unique.by if name not in arguments]
    if missing:
        raise InvalidTask(
            "unique.by", f"{show(missing[0])} is not an argument of this task; name arguments that every task has"
        )
    return msgspec.json.encode([[name, arguments[name]] for name in sorted(unique.by)], order="deterministic")


def amend(task_id: str, new: NewTask) -> Change:
    """Give a waiting task the payload, group, priority and run time of a submission. A running task is refused."""
    return Change(
        id=task_id,
        guard=Guard.WAITING,
        to=Status.PENDING,
        payload=new.payload,
        group=group_in(new.needs),
        priority=new.priority,
        promotion=new.priority * min(new.ageing, STRICT),
        delay=new.delay if new.run_at is None else None,
        run_at=new.run_at,
    )
