"""Creates validated `NewTask` objects from the options of `enqueue`, and tasks of workflows before their submission."""

import sys
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Literal, TypeAlias, TypedDict, Unpack

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.clock import Clock, instant, system_clock
from qo.errors import InvalidTask
from qo.ids import new_id
from qo.model import (
    AGEING,
    BLOCKED_AT,
    DEFAULT_POLICY,
    FILLS_RESULTS,
    MAX_RETRIES,
    TIMEOUT,
    UNREADABLE,
    WINDOW,
    GraphNode,
    Limit,
    NewTask,
    PromotionTimes,
    RetryPolicy,
    Unique,
    WorkflowGraph,
    check_depth,
    check_described,
    check_id,
    check_limit,
    check_name,
    check_names,
    check_payload,
    check_size,
    check_type,
    check_unique,
    derived_id,
    group_by,
    group_of,
    level,
    unique_key,
    with_group,
)
from qo.model.text import unknown_options

Seconds = float | timedelta
_type_of = type  # below, `type` is a parameter
_NO_DELAY = 0.0
# The batch of the tasks that are created in this context.
current_batch: ContextVar[str | None] = ContextVar("qo_batch", default=None)
_NO_ID = "00000000-0000-8000-8000-000000000000"
Priority: TypeAlias = Literal["high", "medium", "low", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]  # 0 goes first; high is 0


class TaskOptions(TypedDict, total=False):
    """The options of a submission."""

    id: str | None  # chosen by the caller; a task whose id already exists is not stored again
    queue: str
    priority: Priority
    needs: Iterable[str]  # capabilities that a worker must have
    timeout: Seconds  # for one attempt
    max_retries: int
    retry: RetryPolicy | None  # the back-off between attempts
    delay: Seconds  # before the first attempt
    run_at: datetime | float | None  # not before this time; a float is seconds since the epoch
    idempotency_key: str | None  # at most one task of this queue and type under the key
    trace_id: str | None
    batch: str | None  # the batch that it belongs to; see qo.batch
    unique: Unique | None  # at most one task with the same arguments
    limit: Limit | None  # its key is the argument that the task is grouped by; workers use the numbers in their code
    fair_by: str | None  # an argument; workers take turns between its values


_OPTION_NAMES = frozenset(TaskOptions.__annotations__)


def check_option_names(given: TaskOptions) -> None:
    """Raise InvalidTask for an option that does not exist, which is often an argument of the task."""
    if not given.keys() <= _OPTION_NAMES:
        unknown = unknown_options(given, _OPTION_NAMES)
        raise InvalidTask("options", f"{unknown}. Pass the arguments of the task as a dict: enqueue(type, {{...}})")


class Settings(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Settings of a client."""

    # Seconds of waiting per level of priority (inf is strict, 0 is first in, first out), or the times of promotion.
    ageing: float | PromotionTimes = AGEING
    window: float = WINDOW  # seconds for which an idempotency key is unique
    recovery_interval: float = 10.0  # seconds after which `dequeue` checks for expired leases again; inf: never
    # Seconds after which `dequeue` archives finished tasks, on stores with a default retention; 0: never.
    retention: float | None = None
    payload_limit: int = 0  # bytes of a payload or result; 0: the limit of the store


def describe(
    settings: Settings, type: str, payload: bytes, *, clock: Clock = system_clock, **options: Unpack[TaskOptions]
) -> NewTask:
    """A validated task, ready to submit. `payload` is already encoded."""
    if options or current_batch.get() is not None:
        return _describe(settings, type, payload, clock=clock, **options)
    try:
        template = _plain_template(settings, type)
    except TypeError:  # an unhashable value
        return _describe(settings, type, payload, clock=clock)
    return _copy(template, settings, payload, clock)


def _copy(template: NewTask, settings: Settings, payload: bytes, clock: Clock) -> NewTask:
    """The template with another id and payload."""
    check_payload(payload, settings.payload_limit or sys.maxsize)
    return replace(template, id=new_id(clock), payload=payload)


def _describe(
    settings: Settings,
    type: str,
    payload: bytes,
    *,
    id: str | None = None,
    queue: str = "default",
    priority: Priority = "medium",
    needs: Iterable[str] = (),
    timeout: Seconds = TIMEOUT,
    max_retries: int = MAX_RETRIES,
    retry: RetryPolicy | None = None,
    delay: Seconds = _NO_DELAY,
    run_at: datetime | float | None = None,
    idempotency_key: str | None = None,
    trace_id: str | None = None,
    batch: str | None = None,
    unique: Unique | None = None,
    limit: Limit | None = None,
    fair_by: str | None = None,
    clock: Clock = system_clock,
) -> NewTask:
    template = None
    if batch is None:
        batch = current_batch.get()
    group = None if limit is None and fair_by is None else _group(limit, fair_by, payload)
    is_plain = group is None and id is None and idempotency_key is None and unique is None and batch is None
    is_usual = is_plain and trace_id is None and run_at is None and delay is _NO_DELAY
    if is_usual and (retry is None or retry is DEFAULT_POLICY) and _type_of(needs) is tuple:
        try:
            template = _template(settings, type, queue, priority, needs, timeout, max_retries)
        except TypeError:  # an unhashable value
            template = None
    if template is not None:
        return _copy(template, settings, payload, clock)
    window = settings.window
    if unique is not None:
        if id is not None or idempotency_key is not None:
            raise InvalidTask("unique", "cannot be combined with id and idempotency_key; pass one of them")
        idempotency_key, window = unique_key(check_unique(unique), payload), unique.window
    if id is not None:
        check_id(id)
    elif idempotency_key is not None:
        id = derived_id(check_name("queue", queue), check_type("type", type), str(idempotency_key))
    _check_times(delay, run_at)
    priority_level = level(priority) if isinstance(priority, str) else priority
    return check_described(
        NewTask(
            id=new_id(clock) if id is None else id,
            queue=queue,
            type=type,
            payload=payload,
            priority=priority_level,
            needs=with_group(() if needs == () else check_names("needs", needs), group),
            timeout=seconds(timeout),
            max_retries=max_retries,
            retry=DEFAULT_POLICY if retry is None else retry,
            delay=seconds(delay),
            run_at=None if run_at is None else parse_instant("run_at", run_at),
            idempotency_key=idempotency_key,
            trace_id=trace_id,
            ageing=ageing_of(settings.ageing, priority_level),
            window=window,
            next_id=None if idempotency_key is None else new_id(clock),
            batch=batch,
            until_started=unique is not None and unique.until == "started",
            on_duplicate=None if unique is None else unique.on_duplicate,
        ),
        payload_limit=settings.payload_limit or sys.maxsize,  # the client checks again with the store's limit
    )


def _check_times(delay: Seconds, run_at: datetime | float | None) -> None:
    if run_at is not None and seconds(delay) != _NO_DELAY:
        raise InvalidTask("delay", "cannot be combined with run_at; pass one of them")
    if isinstance(run_at, int | float) and run_at >= BLOCKED_AT:
        raise InvalidTask("run_at", f"must be below {BLOCKED_AT:.0f}")


def _group(limit: Limit | None, fair_by: str | None, payload: bytes) -> str | None:
    """The group of a task: the value of the argument that its limit or its turns depend on."""
    if limit is not None:
        check_limit(limit)
    key = group_by(limit, fair_by)
    if key is None:
        return None
    field = "fair_by" if limit is None or limit.key is None else "limit.key"
    try:
        arguments = None if payload[:1] == b"\x00" else msgspec.json.decode(payload)  # raw data has no arguments
    except UNREADABLE as error:
        raise InvalidTask("payload", f"is not JSON: {error}") from error
    return group_of(key, arguments, field)


def check_payloads(tasks: Sequence[NewTask], limit: int) -> None:
    """Raise InvalidTask for payloads that a store with this limit does not accept."""
    check_size("payload", max((task.payload for task in tasks), key=len, default=b""), limit)
    for task in tasks:
        check_depth("payload", task.payload)


@lru_cache(maxsize=1024, typed=True)  # most tasks share these values; typed, because True == 1
def _template(  # noqa: PLR0917 - positional, so that the cache has one key for each combination
    settings: Settings,
    type: str,
    queue: str,
    priority: Priority,
    needs: Iterable[str],
    timeout: Seconds,
    max_retries: int,
) -> NewTask:
    """A validated task, of which only the id and the payload are replaced."""
    return _describe(
        settings,
        type,
        b"0",  # the shortest JSON text, so that no payload limit rejects it
        id=_NO_ID,
        queue=queue,
        priority=priority,
        needs=needs,
        timeout=timeout,
        max_retries=max_retries,
    )


@lru_cache(maxsize=1024, typed=True)
def _plain_template(settings: Settings, type: str) -> NewTask:
    """The same for a task without options."""
    return _template(settings, type, "default", "medium", (), TIMEOUT, MAX_RETRIES)


def ageing_of(setting: float | PromotionTimes, priority: int) -> float:
    """Seconds of waiting per level, for a task of this priority."""
    return setting.ageing(level(priority)) if isinstance(setting, PromotionTimes) else setting


def seconds(duration: Seconds) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else duration


def parse_instant(field: str, given: float | str | datetime) -> float:
    """Seconds since the epoch, from a number, a datetime or ISO 8601 text. Raises InvalidTask."""
    if isinstance(given, datetime):
        given = given.isoformat()
    if isinstance(given, str):
        try:
            return instant(given)
        except ValueError as error:
            raise InvalidTask(field, f"{given!r:.80} is not an ISO 8601 time such as 2030-01-31T08:00:00Z") from error
    return given


class PlannedTask(Struct, frozen=True, kw_only=True):
    """A task of a workflow before its submission."""

    node: GraphNode
    new: NewTask  # its id and batch are set on submission


def digest_of(planned: Sequence[PlannedTask]) -> str:
    """A digest of everything that distinguishes one submission from another under the same key."""
    digest = sha256()
    for each in planned:
        new = each.new
        digest.update(msgspec.msgpack.encode((msgspec.to_builtins(each.node), new.queue, new.priority)))
        digest.update(sha256(new.payload).digest())
    return digest.hexdigest()[:32]


def stored_tasks(graph: WorkflowGraph, planned: Sequence[PlannedTask]) -> list[NewTask]:
    return [stored_task(graph, index, each.new) for index, each in enumerate(planned)]


def stored_task(graph: WorkflowGraph, index: int, new: NewTask) -> NewTask:
    """The task as it is stored: blocked, if it has parents."""
    if graph.nodes[index].bindings:
        new = replace(new, needs=tuple(sorted({*new.needs, FILLS_RESULTS})))
    if not graph.nodes[index].parents:
        return replace(new, id=graph.task_id(index), batch=graph.id)
    return replace(new, id=graph.task_id(index), batch=graph.id, run_at=BLOCKED_AT, delay=0.0)
