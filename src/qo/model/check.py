"""Validation of what callers submit. Names and ids are safe in paths, SQL, Lua and markup."""

import re
from collections import Counter
from collections.abc import Iterable, Sized
from functools import lru_cache

from qo.errors import BadBatch, InvalidTask
from qo.model.group import GROUP_MARK, check_group
from qo.model.ranking import level
from qo.model.task import DEFAULT_POLICY, LONGEST, NewTask, RetryPolicy
from qo.model.text import is_a, show

MAX_DEPTH = 64
_MAX_SHALLOW = 2 * MAX_DEPTH  # bytes; each level of JSON takes two brackets, so shorter text is not too deep

# The errors of a decoder for unreadable bytes. The depth at which it fails depends on Python's stack.
UNREADABLE = (ValueError, RecursionError)

# Matches from the first quote on, to the end of the text if the string is not closed, so the search is linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def is_too_deep(text: bytes) -> bool:
    """Whether JSON text is nested deeper than MAX_DEPTH levels. For bytes that are not JSON, an estimate.

    Does not parse the text: a parser would reach Python's recursion limit.
    """
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", text).translate(_BRACES_TO_BRACKETS, delete=_NOT_BRACKETS)
    depth = 0
    while b"[]" in brackets and depth <= MAX_DEPTH:
        brackets = brackets.replace(b"[]", b"")  # the innermost level of every branch
        depth += 1
    return depth + brackets.count(b"[") > MAX_DEPTH


def check_depth(field: str, data: bytes) -> None:
    """Raises InvalidTask for an encoded payload or result that is nested too deeply. Raw data has no depth."""
    if data[:1] != b"\x00" and is_too_deep(data):
        raise InvalidTask(field, f"is nested deeper than {MAX_DEPTH} levels")


def check_payload(data: bytes, limit: int) -> None:
    """Raises InvalidTask for a payload of more than `limit` bytes, or one that is nested too deeply."""
    if len(data) > limit:
        check_size("payload", data, limit)
    if len(data) > _MAX_SHALLOW:
        check_depth("payload", data)


PAYLOAD_LIMIT = 256 * 1024  # bytes; larger values are stored outside the task, where the store supports it
MAX_LIMIT = _MAX_WHOLE_NUMBER = 10_000  # for retries, concurrency and limits of types
MAX_NAMES = 1000  # in a list of queues, types, capabilities or needs
_MAX_KEY_LENGTH = 256  # characters
_INFINITE = float("inf")
# One-slot cache of the last RetryPolicy that passed. Compared with `is`, because `==` treats True and 1 alike.
_checked_policy = [DEFAULT_POLICY]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
_BATCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,254}")
ID_PATTERN = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # a UUID in lower case, with dashes
_ID = re.compile(ID_PATTERN)


def check_name(field: str, name: str) -> str:
    if not is_a(name, str) or not _NAME.fullmatch(name):
        raise InvalidTask(
            field, f"{show(name)} is not a name: 1 to 64 letters, digits or _.:- and a letter or digit first"
        )
    return name


def check_batch_id(field: str, name: str) -> str:
    """A batch may have a longer name than a queue."""
    if not is_a(name, str) or not _BATCH.fullmatch(name):
        raise InvalidTask(
            field, f"{show(name)} is not a batch: 1 to 128 letters, digits or _.:- and a letter or digit first"
        )
    return name


def check_number_of_names(field: str, given: Sized) -> None:
    """Raise for a list that is too long: a store compares each name with each lane."""
    if len(given) > MAX_NAMES:
        raise InvalidTask(field, f"has {len(given):,} names, the limit is {MAX_NAMES:,}")


def check_names(field: str, given: Iterable[str]) -> tuple[str, ...]:
    """The names, sorted and without duplicates."""
    if is_a(given, str) or not is_a(given, Iterable):
        raise InvalidTask(field, f"{show(given)} is not a list of names")
    names = list(given)
    check_number_of_names(field, names)
    return tuple(sorted({check_name(field, name) for name in names}))


def check_type(field: str, name: str) -> str:
    """A type may be longer than other names and may look like a path or an address. Stores encode it where needed."""
    if not is_a(name, str) or not _TYPE.fullmatch(name):
        raise InvalidTask(
            field, f"{show(name)} is not a type: 1 to 255 letters, digits or _.:/@+- and a letter or digit first"
        )
    return name


def check_types(field: str, given: Iterable[str]) -> tuple[str, ...]:
    """The types, sorted and without duplicates."""
    if is_a(given, str) or not is_a(given, Iterable):
        raise InvalidTask(field, f"{show(given)} is not a list of types")
    types = list(given)
    check_number_of_names(field, types)
    return tuple(sorted({check_type(field, name) for name in types}))


def is_id(task_id: str) -> bool:
    """Whether this can be the id of a task. An id is safe as a part of a path or of a SQL value."""
    return is_a(task_id, str) and _ID.fullmatch(task_id) is not None


def check_id(task_id: str, field: str = "id") -> str:
    if not is_id(task_id):
        raise InvalidTask(field, f"{show(task_id)} is not a UUID in lower case with dashes")
    return task_id


def check_new(new: NewTask, *, payload_limit: int = PAYLOAD_LIMIT) -> NewTask:
    """Raise InvalidTask for a task that no store should accept."""
    check_id(new.id)
    if new.next_id is not None:
        check_id(new.next_id, "next_id")
    return check_described(new, payload_limit=payload_limit)


def check_described(new: NewTask, *, payload_limit: int) -> NewTask:
    """As `check_new`, without the id: a caller that generated the id need not check it."""
    kind = new.queue, new.type, new.needs, new.priority, new.timeout, new.max_retries, new.ageing, new.window
    try:
        _check_kind(*kind)
    except TypeError:  # an unhashable value, which the cache rejects
        _check_kind.__wrapped__(*kind)
    if new.retry is not _checked_policy[0]:
        _checked_policy[0] = check_retry(new.retry)
    check_size("payload", new.payload, payload_limit)
    check_depth("payload", new.payload)
    check_number("delay", new.delay)
    if new.run_at is not None:
        check_number("run_at", new.run_at, maximum=2 * LONGEST)
    check_idempotency_key(new.idempotency_key)
    _check_text("trace_id", new.trace_id)
    if new.batch is not None:
        check_batch_id("batch", new.batch)
    return new


@lru_cache(maxsize=1024, typed=True)  # most tasks share these values; typed, because True == 1
def _check_kind(  # noqa: PLR0917 - positional, so that the cache has one key for each combination
    queue: str,
    type: str,
    needs: tuple[str, ...],
    priority: int,
    timeout: float,
    max_retries: int,
    ageing: float,
    window: float,
) -> None:
    check_name("queue", queue)
    check_type("type", type)
    for number, need in enumerate(needs):
        if number == 0 and is_a(need, str) and need.startswith(GROUP_MARK):
            check_group("group", need.removeprefix(GROUP_MARK))
        else:
            check_name("needs", need)
    level(priority)
    check_number("timeout", timeout, above=0.0)
    check_whole("max_retries", max_retries)
    _check_duration("ageing", ageing)
    _check_duration("window", window)


def check_size(field: str, data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise InvalidTask(
            field,
            f"is {len(data):,} bytes, the limit is {limit:,}; store the data elsewhere and submit a reference to it",
        )


def check_retry(policy: RetryPolicy) -> RetryPolicy:
    if not is_a(policy, RetryPolicy):
        raise InvalidTask("retry", f"{show(policy)} is not a qo.RetryPolicy")
    check_number("retry.initial", policy.initial)
    check_number("retry.max", policy.max)
    check_number("retry.multiplier", policy.multiplier, above=0.0)
    check_number("retry.jitter", policy.jitter, maximum=1.0)
    check_number("retry.timeout_growth", policy.timeout_growth, above=0.0)
    return policy


def check_distinct(ids: Iterable[str]) -> None:
    """Raise BadBatch if an id occurs twice: a batch is unordered, so it may change each task once."""
    ids = list(ids)
    if len(set(ids)) != len(ids):
        twice = [task_id for task_id, times in Counter(ids).items() if times > 1]
        raise BadBatch(f"a batch contains a task twice: {', '.join(twice)}")


def check_number(field: str, value: float, *, above: float | None = None, maximum: float = LONGEST) -> None:
    if not is_a(value, int, float) or not -_INFINITE < value < _INFINITE:
        raise InvalidTask(field, f"{show(value)} is not a finite number")
    if value < 0 or value > maximum or value == above:
        raise InvalidTask(
            field,
            f"{show(value)} must be {'greater than' if above is not None else 'at least'} 0 and at most {maximum:g}",
        )


def check_whole(field: str, value: int) -> None:
    if not is_a(value, int) or not 0 <= value <= _MAX_WHOLE_NUMBER:
        raise InvalidTask(field, f"{show(value)} is not a whole number from 0 to {_MAX_WHOLE_NUMBER:,}")


def _check_duration(field: str, value: float) -> None:
    """As `check_number`, for seconds that may be infinite."""
    if value != _INFINITE:
        check_number(field, value)


def check_idempotency_key(key: str | None) -> str | None:
    """A key of a task or a workflow."""
    _check_text("idempotency_key", key)
    return key


def _check_text(field: str, value: str | None) -> None:
    if value is None:
        return
    if not is_a(value, str) or not 1 <= len(value) <= _MAX_KEY_LENGTH or not value.isprintable():
        raise InvalidTask(field, f"{show(value)} must be 1 to {_MAX_KEY_LENGTH} printable characters")
