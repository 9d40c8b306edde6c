"""Tasks, workers and controls as a caller can see them. What is outside its limits does not exist for the caller."""

from collections.abc import Iterable
from typing import Any

from litestar import Request
from litestar.exceptions import PermissionDeniedException
from msgspec import Struct
from msgspec.structs import replace

from qo.errors import TaskNotFound
from qo.explanation import WaitReason, explain, explain_task
from qo.fleet_limits.limit_status import reasons_to_wait
from qo.handled_types import read_consumers
from qo.model import Counts, Filter, NewTask, PendingKind, Task, is_id
from qo.notes import MAX_LIVE_TYPES, Controls, WorkerNote
from qo.web.callers import AccessLimits
from qo.web.http.access import caller_of
from qo.web.http.server import known_id, server_of

_MAX_CURRENT_TASKS = 1000  # running tasks that are read to find those the caller can see


async def found(request: Request[Any, Any, Any], task_id: str) -> Task:
    """The task. Raises TaskNotFound if it does not exist, is outside the limits, or the id is malformed."""
    client, caller = server_of(request).client, caller_of(request)
    (task,) = await client.engine.get([known_id(task_id)])
    if task is None and caller.limits.is_whole:  # the queue and type of a damaged task are unknown
        await client.check_not_damaged(known_id(task_id))
    if task is None or not caller.may_see(task):
        raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
    return task


async def check_visible(request: Request[Any, Any, Any], task_id: str) -> str:
    """The id of a task that the caller can change, or TaskNotFound. Reads nothing for a caller without limits."""
    task_id = known_id(task_id)
    if not caller_of(request).limits.is_whole:
        await found(request, task_id)
    return task_id


async def visible(request: Request[Any, Any, Any], ids: list[str]) -> set[str]:
    """The ids that the caller can see. For a caller without limits all of them, whether they exist or not."""
    caller = caller_of(request)
    if caller.limits.is_whole:
        return set(ids)
    tasks = await server_of(request).client.engine.get_without_values(ids)
    return {task.id for task in tasks if task is not None and caller.may_see(task)}


def check_may_submit(request: Request[Any, Any, Any], tasks: Iterable[NewTask]) -> None:
    limits = caller_of(request).limits
    if limits.is_whole:
        return
    for task in tasks:
        if not limits.includes_task(task):
            raise PermissionDeniedException(f"this token is not for tasks of type {task.type} in queue {task.queue}")


# --- workers


async def visible_workers(request: Request[Any, Any, Any]) -> list[WorkerNote]:
    """The registered workers for the caller's queues and types.

    If a worker also serves queues or types outside the limits, only the caller's own tasks are shown and counted.
    """
    client, limits = server_of(request).client, caller_of(request).limits
    workers = await client.workers()
    if limits.is_whole:
        return workers
    relevant = [(worker, where) for worker in workers if (where := limits.narrow(_work_of(worker))) is not None]
    ids = {task_id for worker, _ in relevant for task_id in worker.current_tasks if is_id(task_id)}
    seen = await visible(request, sorted(ids)[:_MAX_CURRENT_TASKS])
    return [worker if is_inside(worker, limits) else _visible_part(worker, where, seen) for worker, where in relevant]


def is_inside(worker: WorkerNote, limits: AccessLimits) -> bool:
    """Whether all queues and types of the worker are inside the limits."""
    return limits.narrow(_work_of(worker)) == _work_of(worker)


def _work_of(worker: WorkerNote) -> Filter:
    return Filter(queues=worker.queues, types=worker.types)


def _visible_part(worker: WorkerNote, where: Filter, seen: set[str]) -> WorkerNote:
    current = tuple(task_id for task_id in worker.current_tasks if task_id in seen)
    return replace(
        worker,
        queues=where.queues,
        types=where.types,
        current_tasks=current,
        current_load=len(current),
        waiting=0,
        tasks_completed=0,
        tasks_failed=0,
    )


# --- controls


class PausedView(Struct, frozen=True, kw_only=True):
    all: bool
    queues: list[str]
    types: list[str]


class FleetNumbers(Struct, frozen=True, kw_only=True):
    """How many tasks run at a time, and how many start within `per` seconds, across all workers."""

    concurrency: int
    rate: float
    per: float


class ControlsView(Struct, frozen=True, kw_only=True):
    """Pauses and limits. `limit` is how many tasks each worker starts per second, `limits` the same by type;
    `max_types` is how many types with unfinished tasks a queue can have; `fleet` has the limits across all workers
    that were set at run time, by scope. 0 means no limit."""

    paused: PausedView
    limit: float
    limits: dict[str, float]
    max_types: int
    fleet: dict[str, FleetNumbers]


def visible_controls(controls: Controls, limits: AccessLimits, counts: Counts) -> Controls:
    """The controls that affect tasks inside the limits. `counts` are the counts inside the limits."""
    if limits.is_whole:
        return controls
    queues = limits.queues or {lane.queue for lane in counts}
    types = limits.types or {lane.type for lane in counts}
    return replace(
        controls,
        paused_queues=controls.paused_queues & queues,
        paused_types=controls.paused_types & types,
        rate_limits={type: rate for type, rate in controls.rate_limits.items() if type in types},
        limits={
            scope: limit
            for scope, limit in controls.limits.items()
            if scope in {f"type:{type}" for type in types} | {f"queue:{queue}" for queue in queues}
        },
    )


def controls_view(controls: Controls) -> ControlsView:
    return ControlsView(
        paused=PausedView(
            all=controls.paused, queues=sorted(controls.paused_queues), types=sorted(controls.paused_types)
        ),
        limit=controls.rate_limit,
        limits=dict(sorted(controls.rate_limits.items())),
        max_types=MAX_LIVE_TYPES if controls.max_types is None else controls.max_types,
        fleet={
            scope: FleetNumbers(concurrency=limit.concurrency, rate=limit.rate, per=limit.per)
            for scope, limit in sorted(controls.limits.items())
        },
    )


class ExplanationView(Struct, frozen=True, kw_only=True):
    """Why a task is waiting, the most important reason first.

    A reason is blocking if the task cannot start while it persists. `pending_kind` is null for a task that is not
    waiting.
    """

    task_id: str
    pending_kind: PendingKind | None
    reasons: list[WaitReason]


async def explanation_of(request: Request[Any, Any, Any], task: Task) -> ExplanationView:
    """A limited token sees only its own workers, and not how many tasks are ahead."""
    server = server_of(request)
    engine, now, dead_after = server.client.engine, server.clock(), server.settings.dead_after
    if caller_of(request).limits.is_whole:
        found = await explain_task(engine, task, now, dead_after=dead_after)
    else:
        controls = await server.client.controls.in_force()
        found = explain(
            task,
            now,
            controls=controls,
            limits=await reasons_to_wait(engine, task, controls, now),
            workers=await visible_workers(request),
            consumers=await read_consumers(engine),
            dead_after=dead_after,
        )
    return ExplanationView(task_id=task.id, pending_kind=found.kind, reasons=list(found.reasons))
