"""Heartbeats renew the leases of a worker, but not beyond the time limits of its tasks."""

from msgspec.structs import replace

from qo.engine import Engine
from qo.model import Filter, Status, Task, check_id, cursor, renew
from qo.web.remote.checks import MAX_ITEMS
from qo.web.remote.messages import LEASE, Heartbeat
from qo.web.remote.time_limits import TimeLimits
from qo.web.remote.worker_registry import WorkerRegistry, WorkerSession, check_capacity

_PAGE_SIZE = 32  # tasks; they may be large
_GRACE = 15.0  # seconds that a lease lasts beyond the time limit; the server ends the attempt before


async def beat(
    engine: Engine, registry: WorkerRegistry, session: WorkerSession, asked: Heartbeat, limits: TimeLimits
) -> list[str]:
    """Renew the leases of the worker. Returns the ids of tasks that it no longer holds."""
    named = None if asked.current_tasks is None else {check_id(task_id) for task_id in asked.current_tasks[:MAX_ITEMS]}
    load = check_capacity("current_load", asked.current_load)
    if asked.status == "dead":
        await registry.leave(session)
        return []
    await limits.enforce()
    held = [task for task in await _tasks_of(engine, session.note.worker_id) if named is None or task.id in named]
    renewals = {task.id: renew(task, min(LEASE, limits.left(task) + _GRACE)) for task in held}
    renewed = dict(zip(renewals, await engine.apply([*renewals.values()]), strict=True))
    note = replace(
        session.note,
        status=asked.status,
        current_load=load,
        current_tasks=tuple(sorted(renewed))[: session.note.capacity],
    )
    await registry.announce(session, note)
    return sorted((named or set(renewed)) - {task_id for task_id, still in renewed.items() if still})


async def _tasks_of(engine: Engine, worker_id: str) -> list[Task]:
    """The running tasks of the worker, without values."""
    where = Filter(worker_id=worker_id, statuses=(Status.RUNNING,))
    tasks: list[Task] = []
    after = ""
    while len(tasks) < MAX_ITEMS:
        some = await engine.find_without_values(where, limit=_PAGE_SIZE, after=after)
        tasks += [replace(task, payload=b"null", result=None) for task in some]
        if len(some) < _PAGE_SIZE:
            break
        after = cursor(some[-1])
    return tasks
