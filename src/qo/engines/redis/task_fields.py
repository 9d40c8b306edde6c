"""Between tasks and the strings a task's hash holds. `prelude.lua` knows the layout of state and event too."""

import logging
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isnan, nan
from typing import Any, NamedTuple

import msgspec

from qo.damage import check_stored
from qo.model import MEDIUM, STRICT, UNREADABLE, Change, Event, NewTask, RetryPolicy, Status, Task

log = logging.getLogger("qo.engines")
_HEAD = struct.Struct(">BIIIdddddddd")
_EVENT = struct.Struct(">BIIIdd")
STATUSES = (
    Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ARCHIVED,
)  # fmt: skip
_DEFAULT_RETRY = RetryPolicy()
FIELDS = 6  # of a task in an answer: id, s, d, p, r, e


class Place(NamedTuple):
    """What a lane is named after."""

    queue: str
    type: str
    needs: tuple[str, ...]
    priority: int = MEDIUM  # was not in the names of lanes at first


pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_place = msgspec.json.Decoder(Place)
_fields = msgspec.msgpack.Decoder(dict[bytes, bytes])


class Description(msgspec.Struct, frozen=True, array_like=True):
    """What never changes about a task, beside its lane and payload. A newer qo may have put more behind it."""

    priority: int
    max_retries: int
    retry: RetryPolicy | None  # None: the default policy
    idempotency_key: str | None
    trace_id: str | None
    run_at: float | None = None  # was not there at first


_description = lru_cache(4096)(msgspec.json.Decoder(Description).decode)


@lru_cache(4096)
def lane_of(queue: str, type_: str, needs: tuple[str, ...], priority: int) -> str:
    return _json((queue, type_, needs, priority)).decode()


@lru_cache(4096)
def place_of(lane: bytes) -> Place:
    return _place.decode(lane)


@lru_cache(4096)
def known_place(lane: bytes) -> Place | None:
    """None, said once: this is not the name of a lane, so no task is looked for under it."""
    try:
        return _place.decode(lane)
    except UNREADABLE as error:
        log.error(  # noqa: TRY400 - once, and no stack
            "a lane in Redis is damaged and left alone: %r: %s", lane[:200], error
        )
        return None


def pack_new(tasks: Sequence[NewTask]) -> bytes:
    """A batch as `add.lua` reads it, without the payloads."""
    return pack(
        [
            (
                new.id,
                lane_of(new.queue, new.type, new.needs, new.priority),
                _describe(new),
                new.timeout,
                new.delay,
                new.run_at,
                new.priority * min(new.ageing, STRICT),
                None if new.idempotency_key is None else new.window,
                None if new.idempotency_key is None else new.next_id,
            )
            for new in tasks
        ]
    )


def _describe(task: NewTask | Task) -> str:
    retry = None if task.retry == _DEFAULT_RETRY else task.retry
    described = (task.priority, task.max_retries, retry, task.idempotency_key, task.trace_id)
    return _json(described if task.run_at is None else (*described, task.run_at)).decode()


def pack_changes(changes: Sequence[Change]) -> bytes:
    """A batch as `apply.lua` reads it, without the results."""
    return pack(
        [
            (
                change.id,
                change.guard,
                change.to,
                change.lease_id,
                change.grace,
                change.delay,
                change.lease,
                change.failures,
                change.result is not None,
                change.error,
                change.started_at,
            )
            for change in changes
        ]
    )


class UnpackedTasks(NamedTuple):
    tasks: list[Task]
    damage: dict[str, str]


def tasks_of(rows: Sequence[Any]) -> UnpackedTasks:
    """Tasks from an answer, `FIELDS` strings each, and those that cannot be read."""
    read = UnpackedTasks([], {})
    for at in range(0, len(rows), FIELDS):
        row = rows[at : at + FIELDS]
        try:
            read.tasks.append(check_stored(_task(row)))
        except (*UNREADABLE, TypeError, IndexError, struct.error) as error:
            read.damage[row[0].decode(errors="replace")] = f"its fields in Redis do not decode: {error}"
    return read


def _task(row: Sequence[Any]) -> Task:
    id_, state, description, payload, result, error = row
    if payload is None or description is None:
        raise ValueError("its payload or its description is missing")
    (
        status, attempt, failures, version, timeout, available_at, rank, created_at, updated_at, lease_expires_at,
        started_at, completed_at,
    ) = _HEAD.unpack_from(state)  # fmt: skip
    lane, worker_id, lease_id = state[_HEAD.size :].split(b"\0", 2)
    queue, type_, needs, _ = place_of(lane)
    described = _description(description)
    return Task(
        id=id_.decode(),
        queue=queue,
        type=type_,
        status=STATUSES[status],
        payload=payload,
        result=result,
        error=None if error is None else error.decode(),
        priority=described.priority,
        needs=needs,
        timeout=timeout,
        max_retries=described.max_retries,
        retry=described.retry or _DEFAULT_RETRY,
        attempt=attempt,
        failures=failures,
        available_at=available_at,
        lease_expires_at=None if isnan(lease_expires_at) else lease_expires_at,
        worker_id=worker_id.decode() or None,
        created_at=created_at,
        updated_at=updated_at,
        started_at=None if isnan(started_at) else started_at,
        completed_at=None if isnan(completed_at) else completed_at,
        idempotency_key=described.idempotency_key,
        trace_id=described.trace_id,
        run_at=described.run_at,
        version=version,
        rank=rank,
        lease_id=lease_id.decode() or None,
    )


def state_of(state: bytes) -> tuple[bytes, Status]:
    """The lane and status that a task's state names."""
    return state[_HEAD.size :].partition(b"\0")[0], STATUSES[state[0]]


Fields = dict[bytes, bytes]  # of a task's hash


class KeptTask(NamedTuple):
    """A finished task as it goes to the archive and comes back."""

    task: Task
    events: Sequence[Event]
    rest: bytes | None = None  # what a newer build has added to it: see `rest_of`


def pack_task(task: Task, events: Sequence[Event]) -> Fields:
    """A whole task as its hash."""
    lane = lane_of(task.queue, task.type, task.needs, task.priority)
    fields = {b"s": _pack_state(task, lane), b"p": task.payload, b"d": _describe(task).encode()}
    if task.result is not None:
        fields[b"r"] = task.result
    if task.error is not None:
        fields[b"e"] = task.error.encode()
    return fields | {b"h%d" % event.version: _pack_event(event) for event in events}


def rest_of(stored: Fields, known: Fields) -> bytes | None:
    """What a hash holds that the task and its events do not say: a newer build wrote it. None for nearly all.

    The state has no room for more, and the bits of an instant that has not come differ between Lua and Python.
    """
    rest = {name: value for name, value in stored.items() if name != b"s" and known.get(name) != value}
    return pack(rest) if rest else None


def with_rest(known: Fields, rest: bytes | None) -> Fields:
    return known | (_fields.decode(rest) if rest else {})


def _pack_state(task: Task, lane: str) -> bytes:
    head = _HEAD.pack(
        STATUSES.index(task.status), task.attempt, task.failures, task.version, task.timeout, task.available_at,
        task.rank, task.created_at, task.updated_at, *(
            nan if at is None else at for at in (task.lease_expires_at, task.started_at, task.completed_at)
        ),
    )  # fmt: skip
    return head + "\0".join([lane, task.worker_id or "", task.lease_id or ""]).encode()


def _pack_event(event: Event) -> bytes:
    head = _EVENT.pack(
        STATUSES.index(event.status), event.version, event.attempt, event.failures, event.at, event.available_at
    )
    return head + f"{event.worker_id or ''}\0{'' if event.error is None else '=' + event.error}".encode()


def events_of(fields: Iterable[tuple[bytes, bytes]]) -> list[Event]:
    """The history among a task's fields, in order. What cannot be read of it is left out."""
    events = []
    for name, data in fields:
        if name[:1] == b"h" and name[1:].isdigit():
            with suppress(ValueError, IndexError, struct.error):
                events.append(_event(data))
    return sorted(events, key=lambda event: event.version)


def _event(data: bytes) -> Event:
    status, version, attempt, failures, at, available_at = _EVENT.unpack_from(data)
    worker_id, _, error = data[_EVENT.size :].partition(b"\0")
    return Event(
        version=version,
        at=at,
        status=STATUSES[status],
        attempt=attempt,
        failures=failures,
        worker_id=worker_id.decode() or None,
        error=error[1:].decode() if error else None,
        available_at=available_at,
    )
