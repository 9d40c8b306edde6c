"""Validation of calls of the engine port, as strict as for producers, because the data reaches the same stores."""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from qo import wire
from qo.errors import InvalidTask
from qo.ids import new_id
from qo.model import (
    ADMIN_NOTES,
    AUDIT_NOTES,
    ERROR_LIMIT,
    LOG_LIMIT,
    LOW,
    PROGRESS_TEXT_LIMIT,
    STRICT,
    Change,
    ClaimRequest,
    NewTask,
    Status,
    check_batch_id,
    check_cursor,
    check_depth,
    check_group,
    check_id,
    check_name,
    check_names,
    check_new,
    check_number,
    check_number_of_names,
    check_size,
    check_type,
    group_in,
    show,
    with_group,
    without_group,
)
from qo.model.task import LATEST, LONGEST
from qo.notes import WORKERS

MAX_ITEMS = 10_000  # in a batch, a claim or a page
_MAX_INTEGER = 2**31 - 1  # supported by every store
_NUMBERS = {"grace": LONGEST, "delay": LONGEST, "lease": LONGEST, "failures": _MAX_INTEGER, "started_at": 2 * LONGEST}


_NUMBERS |= {"run_at": LATEST, "priority": LOW, "promotion": LOW * STRICT}
_TYPE_FIELDS = ("types", "per_type_limits", "per_group_limits")
_NOTE_LIMIT = 1024 * 1024  # bytes
_LEASE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_NOTE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}(/[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}){0,3}")
_VERSION = re.compile(r"[\x01-\xff]{1,1024}", re.DOTALL)
_DIGITS = frozenset("0123456789abcdef")
_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]{0,256}")
# Prefixes of notes with secrets, which the port does not read or write.
PRIVATE = (ADMIN_NOTES, "token", "quarantine/token")
_READABLE = f"{ADMIN_NOTES}audit/"  # for clients that read the audit trail
# Prefixes of notes that only the server itself writes: the audit trail.
SERVER_WRITES = (ADMIN_NOTES, AUDIT_NOTES)


def check_batch(items: list[NewTask] | list[Change] | list[str]) -> None:
    if len(items) > MAX_ITEMS:
        raise InvalidTask("batch", f"has {len(items):,} items, the limit is {MAX_ITEMS:,}")


def check_task(new: NewTask, payload_limit: int) -> NewTask:
    check_new(new, payload_limit=payload_limit)
    needs = with_group(check_names("needs", without_group(new.needs)), group_in(new.needs))
    if new.idempotency_key is not None and new.next_id is None:  # a client of an earlier version
        new = replace(new, next_id=new_id())
    return new if needs == new.needs else replace(new, needs=needs)


def check_claim_request(request: ClaimRequest) -> ClaimRequest:
    check_name("worker_id", request.worker_id)
    check_lease_id(request.lease_id)
    for field in ("queues", "types", "capabilities", "per_type_limits", "per_group_limits"):
        names = getattr(request, field)
        check_number_of_names(field, names)
        for name in names:
            (check_type if field in _TYPE_FIELDS else check_name)(field, name)
    check_number_of_names("group_limits", request.group_limits)
    for key in request.group_limits:
        type_, _, group = key.partition(" ")
        check_type("group_limits", type_)
        check_group("group_limits", group)
    check_number("lease", request.lease, above=0.0)
    limits = (request.per_type_limits, request.per_group_limits, request.group_limits)
    if 0 <= request.limit <= MAX_ITEMS and all(0 <= most <= MAX_ITEMS for some in limits for most in some.values()):
        return request
    return replace(
        request,
        limit=_clamp(request.limit),
        per_type_limits=_clamp_each(request.per_type_limits),
        per_group_limits=_clamp_each(request.per_group_limits),
        group_limits=_clamp_each(request.group_limits),
    )


def _clamp_each(limits: Mapping[str, int]) -> dict[str, int]:
    return {name: _clamp(most) for name, most in limits.items()}


def check_find(message: wire.Find) -> wire.Find:
    where = message.where
    for field in ("queues", "types", "statuses", "shards"):
        check_number_of_names(field, getattr(where, field))
    for name in where.queues:
        check_name("queues", name)
    for name in where.types:
        check_type("types", name)
    if not set(where.shards) <= _DIGITS:
        raise InvalidTask("shards", f"{show(where.shards)} must be first digits of ids: 0 to 9, a to f")
    if where.batch is not None:
        check_batch_id("batch", where.batch)
    if where.worker_id is not None:
        check_name("worker_id", where.worker_id)
    for field in ("expired_for", "finished_for"):
        value = getattr(where, field)
        if value is not None:
            check_number(field, value)
    check_cursor(message.after)
    if message.created_before is not None:
        check_number("created_before", message.created_before, maximum=LATEST)
    return replace(message, limit=_clamp(message.limit))


def _clamp(number: int) -> int:
    return max(0, min(number, MAX_ITEMS))


def check_change(change: Change, payload_limit: int) -> Change:
    check_id(change.id)
    if change.lease_id is not None:
        check_lease_id(change.lease_id)
    for field, most in _NUMBERS.items():
        value = getattr(change, field)
        if value is not None:
            check_number(field, value, maximum=most)
    if (change.priority is None) != (change.promotion is None):
        raise InvalidTask("promotion", "is required together with a priority")
    if change.to is Status.RUNNING and change.lease is None:
        raise InvalidTask("lease", "is missing: a running task has a lease")
    if change.result is not None:
        check_size("result", change.result, payload_limit)
        check_depth("result", change.result)
    if change.payload is not None:
        check_size("payload", change.payload, payload_limit)
        check_depth("payload", change.payload)
    if change.error is not None:
        check_size("error", change.error.encode(), ERROR_LIMIT)
        if "\x00" in change.error:
            raise InvalidTask("error", "must not contain a NUL character, which not every store supports")
    _check_report(change)
    return change


def _check_report(change: Change) -> None:
    """Check the log and the progress of an attempt, and the group that it found."""
    if change.group is not None:
        check_group("group", change.group)
    if change.progress is not None:
        check_number("progress", change.progress, maximum=1.0)
    for field, limit in (("log", LOG_LIMIT), ("progress_text", 4 * PROGRESS_TEXT_LIMIT)):
        text = getattr(change, field)
        if text is not None:
            check_size(field, text.encode(), limit)
            if "\x00" in text:
                raise InvalidTask(field, "must not contain a NUL character, which not every store supports")


def check_lease_id(lease_id: str) -> str:
    if not _LEASE_ID.fullmatch(lease_id):
        raise InvalidTask("lease_id", "must be 1 to 128 visible ASCII characters")
    return lease_id


def check_note(name: str, data: bytes = b"") -> str:
    """The name of a note, which can become part of a path in a bucket."""
    if not _NOTE.fullmatch(name) or is_private(name):
        raise InvalidTask("note", f"{show(name)} is not the name of a note such as {WORKERS}mine")
    check_size("note", data, _NOTE_LIMIT)
    return name


def is_private(name: str) -> bool:
    return name.startswith(PRIVATE) and not name.startswith(_READABLE)


def check_written_note(name: str, data: bytes = b"") -> str:
    if name.startswith(SERVER_WRITES):
        raise InvalidTask("note", f"{show(name)} is written by the server only")
    return check_note(name, data)


def check_version(expected: str) -> str:
    """The version of a note. Stores derive it from bytes; a damaged note can have any byte except NUL."""
    if not _VERSION.fullmatch(expected):
        raise InvalidTask("expected", f"{show(expected)} is not the version of a note")
    return expected


def check_prefix(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix) or ".." in prefix or prefix.startswith("/"):
        raise InvalidTask("prefix", f"{show(prefix)} is not the beginning of a note's name")
    return prefix
