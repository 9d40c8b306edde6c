"""Tasks and workers as far as a caller is told of them: what lies outside its limits does not exist for it."""

from collections.abc import Iterable
from typing import Any

from litestar import Request
from litestar.exceptions import PermissionDeniedException
from msgspec.structs import replace

from qo.errors import TaskNotFound
from qo.model import Filter, NewTask, Task, is_id
from qo.notes import WorkerNote
from qo.web.access import caller_of
from qo.web.callers import AccessLimits
from qo.web.server import known_id, server_of

_MAX_CURRENT_TASKS = 1000  # tasks of workers that are looked up, to find those the caller may see


async def found(request: Request[Any, Any, Any], task_id: str) -> Task:
    """The task, or TaskNotFound. What is no id names no task."""
    queue, caller = server_of(request).queue, caller_of(request)
    (task,) = await queue.engine.get([known_id(task_id)])
    if task is None and caller.limits.is_whole:  # where a damaged task belongs is not known
        await queue.check_not_damaged(known_id(task_id))
    if task is None or not caller.may_see(task):
        raise _no_task(task_id)
    return task


async def check_visible(request: Request[Any, Any, Any], task_id: str) -> str:
    """The id of a task that may be changed, or TaskNotFound. A caller without limits costs no read."""
    task_id = known_id(task_id)
    if not caller_of(request).limits.is_whole:
        await found(request, task_id)
    return task_id


async def visible(request: Request[Any, Any, Any], ids: list[str]) -> set[str]:
    """Those of these ids that the caller may be told of. Without limits all of them, whether they exist or not."""
    caller = caller_of(request)
    if caller.limits.is_whole:
        return set(ids)
    tasks = await server_of(request).queue.engine.get_without_values(ids)
    return {task.id for task in tasks if task is not None and caller.may_see(task)}


def _no_task(task_id: str) -> TaskNotFound:
    return TaskNotFound(f"there is no task {task_id}", task_id=task_id)


def check_may_submit(request: Request[Any, Any, Any], tasks: Iterable[NewTask]) -> None:
    limits = caller_of(request).limits
    if limits.is_whole:
        return
    for task in tasks:
        if not limits.includes_task(task):
            raise PermissionDeniedException(f"this token is not for tasks of type {task.type} in queue {task.queue}")


async def visible_workers(request: Request[Any, Any, Any]) -> list[WorkerNote]:
    """Everyone registered who works for the caller's queues and types, as far as it does.

    Of a worker that works for others as well, only the caller's own tasks are shown and counted.
    """
    queue, limits = server_of(request).queue, caller_of(request).limits
    workers = await queue.workers()
    if limits.is_whole:
        return workers
    near = [(worker, where) for worker in workers if (where := limits.narrow(_work_of(worker))) is not None]
    ids = {task_id for worker, _ in near for task_id in worker.current_tasks if is_id(task_id)}
    seen = await visible(request, sorted(ids)[:_MAX_CURRENT_TASKS])
    return [worker if is_inside(worker, limits) else _as_seen(worker, where, seen) for worker, where in near]


def is_inside(worker: WorkerNote, limits: AccessLimits) -> bool:
    """Whether it works for nobody else."""
    return limits.narrow(_work_of(worker)) == _work_of(worker)


def _work_of(worker: WorkerNote) -> Filter:
    return Filter(queues=worker.queues, types=worker.types)


def _as_seen(worker: WorkerNote, where: Filter, seen: set[str]) -> WorkerNote:
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
