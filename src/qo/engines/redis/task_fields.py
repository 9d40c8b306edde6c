"""Tasks as the fields of Redis hashes. `prelude.lua` packs states and events in the same way."""

import logging
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from math import isnan, nan
from typing import Any, NamedTuple

import msgspec

from qo.damage import check_stored
from qo.model import (
    MEDIUM,
    STRICT,
    UNREADABLE,
    Change,
    Event,
    FailureKind,
    NewTask,
    RetryPolicy,
    Status,
    Task,
    kind_of,
    with_group,
)

log = logging.getLogger("qo.engines")
_STATE = struct.Struct(">BIIIdddddddd")
_EVENT = struct.Struct(">BIIIdd")
STATUSES = (
    Status.PENDING, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.ARCHIVED,
)  # fmt: skip
_DEFAULT_RETRY = RetryPolicy()
FIELDS = 10  # values of a task in a script's answer: id, s, d, p, r, e, k, a, b, g


class RedisLane(NamedTuple):
    """The values in the name of a lane, which is their JSON array."""

    queue: str
    type: str
    needs: tuple[str, ...]
    priority: int = MEDIUM  # missing in names that old builds wrote


pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode
_lane = msgspec.json.Decoder(RedisLane)
_fields = msgspec.msgpack.Decoder(dict[bytes, bytes])
_progress = msgspec.json.Decoder(tuple[float, str | None])


class Description(msgspec.Struct, frozen=True, array_like=True):
    """The fields of a task that seldom change, except its lane and payload. A newer qo may append more.

    `apply.lua` replaces the priority, which comes first.
    """

    priority: int
    max_retries: int
    retry: RetryPolicy | None  # None: the default policy
    idempotency_key: str | None
    trace_id: str | None
    run_at: float | None = None  # missing in descriptions that old builds wrote


_description = lru_cache(4096)(msgspec.json.Decoder(Description).decode)


@lru_cache(4096)
def lane_name(queue: str, type_: str, needs: tuple[str, ...], priority: int) -> str:
    return _json((queue, type_, needs, priority)).decode()


@lru_cache(4096)
def parse_lane(name: bytes) -> RedisLane:
    return _lane.decode(name)


@lru_cache(4096)
def parse_lane_or_log(name: bytes) -> RedisLane | None:
    """None, logged once, if this is not the name of a lane. Its tasks are ignored."""
    try:
        return _lane.decode(name)
    except UNREADABLE as error:
        log.error(  # noqa: TRY400 - the stack says nothing
            "a lane in Redis is damaged and ignored: %r: %s", name[:200], error
        )
        return None


def pack_new(tasks: Sequence[NewTask]) -> bytes:
    """Encode a batch for `add.lua`, without the payloads."""
    return pack(
        [
            (
                new.id,
                lane_name(new.queue, new.type, new.needs, new.priority),
                _describe(new),
                new.timeout,
                new.delay,
                new.run_at,
                new.priority * min(new.ageing, STRICT),
                None if new.idempotency_key is None else new.window,
                None if new.idempotency_key is None else new.next_id,
                *((new.batch, new.until_started) if new.batch is not None or new.until_started else ()),
            )
            for new in tasks
        ]
    )


def _describe(task: NewTask | Task) -> str:
    retry = None if task.retry == _DEFAULT_RETRY else task.retry
    described = (task.priority, task.max_retries, retry, task.idempotency_key, task.trace_id)
    return _json(described if task.run_at is None else (*described, task.run_at)).decode()


def pack_changes(changes: Sequence[Change]) -> bytes:
    """Encode a batch for `apply.lua`, without the results."""
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
                kind_of(change.error, change.failure_kind),
                change.run_at,
                change.priority,
                change.promotion,
                change.payload is not None,
                change.log,
                None if change.progress is None else _json((change.progress, change.progress_text)).decode(),
                None if change.group is None else _json(with_group((), change.group)[0]).decode(),
            )
            for change in changes
        ]
    )


class UnpackedTasks(NamedTuple):
    tasks: list[Task]
    damage: dict[str, str]  # why a task cannot be decoded, by its id


def unpack_tasks(rows: Sequence[Any]) -> UnpackedTasks:
    """Decode the tasks in a script's answer, which has `FIELDS` values for each of them."""
    unpacked = UnpackedTasks([], {})
    for start in range(0, len(rows), FIELDS):
        row = rows[start : start + FIELDS]
        try:
            unpacked.tasks.append(check_stored(_task(row)))
        except (*UNREADABLE, TypeError, IndexError, struct.error) as error:
            unpacked.damage[row[0].decode(errors="replace")] = f"its fields in Redis do not decode: {error}"
    return unpacked


def _task(row: Sequence[Any]) -> Task:
    id_, state, description, payload, result, error_text, kind, archived_from, batch, packed = row
    if payload is None or description is None:
        raise ValueError("its payload or its description is missing")
    (
        status, attempt, failures, version, timeout, available_at, rank, created_at, updated_at, lease_expires_at,
        started_at, completed_at,
    ) = _STATE.unpack_from(state)  # fmt: skip
    error = None if error_text is None else error_text.decode()
    lane_text, worker_id, lease_id = state[_STATE.size :].split(b"\0", 2)
    lane = parse_lane(lane_text)
    described = _description(description)
    progress, progress_text = (None, None) if packed is None else _progress.decode(packed)
    return Task(
        id=id_.decode(),
        queue=lane.queue,
        type=lane.type,
        status=STATUSES[status],
        payload=payload,
        result=result,
        error=error,
        failure_kind=kind_of(error, None if kind is None else FailureKind(kind.decode())),
        archived_from=None if archived_from is None else Status(archived_from.decode()),
        priority=described.priority,
        stored_needs=lane.needs,
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
        batch=None if batch is None else batch.decode(),
        progress=progress,
        progress_text=progress_text,
    )


def lane_and_status(state: bytes) -> tuple[bytes, Status]:
    """The name of the lane and the status in a packed state."""
    return state[_STATE.size :].partition(b"\0")[0], STATUSES[state[0]]


Fields = dict[bytes, bytes]  # of a task's hash


class TaskRecord(NamedTuple):
    """A finished task that is moved to the archive or back."""

    task: Task
    events: Sequence[Event]
    unknown_fields: bytes | None = None  # packed; see `unknown_fields_of`


def pack_task(task: Task, events: Sequence[Event]) -> Fields:
    """The hash of a task."""
    lane = lane_name(task.queue, task.type, task.stored_needs, task.priority)
    fields = {b"s": _pack_state(task, lane), b"p": task.payload, b"d": _describe(task).encode()}
    if task.result is not None:
        fields[b"r"] = task.result
    if task.error is not None:
        fields[b"e"] = task.error.encode()
    if task.failure_kind is not None:
        fields[b"k"] = task.failure_kind.encode()
    if task.archived_from is not None:
        fields[b"a"] = task.archived_from.encode()
    if task.batch is not None:
        fields[b"b"] = task.batch.encode()
    if task.progress is not None:
        fields[b"g"] = _json((task.progress, task.progress_text))
    for event in events:
        fields[b"h%d" % event.version] = _pack_event(event)
        if event.log is not None:
            fields[b"l%d" % event.version] = event.log.encode()
    return fields


def unknown_fields_of(stored: Fields, known: Fields) -> bytes | None:
    """The fields of a stored hash that the task and its events do not account for: a newer build wrote them.

    None for nearly all tasks. The state is excluded: it has no room for additions, and Lua and Python may encode a
    missing time with different bits.
    """
    unknown = {name: value for name, value in stored.items() if name != b"s" and known.get(name) != value}
    return pack(unknown) if unknown else None


def with_unknown_fields(known: Fields, unknown: bytes | None) -> Fields:
    return known | (_fields.decode(unknown) if unknown else {})


def _pack_state(task: Task, lane: str) -> bytes:
    head = _STATE.pack(
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


def unpack_events(fields: Iterable[tuple[bytes, bytes]]) -> list[Event]:
    """The events in a task's hash, in order. Omits events that cannot be decoded."""
    events, stored = [], dict(fields)
    for name, data in stored.items():
        if name[:1] == b"h" and name[1:].isdigit():
            with suppress(ValueError, IndexError, struct.error):
                events.append(_event(data, stored.get(b"l" + name[1:])))
    return sorted(events, key=lambda event: event.version)


def _event(data: bytes, log_text: bytes | None) -> Event:
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
        log=None if log_text is None else log_text.decode(),
    )
