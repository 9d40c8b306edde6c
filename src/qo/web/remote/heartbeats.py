"""Heartbeats: a worker lives, and its leases with it, but no lease outlives its task's time limit."""

from msgspec.structs import replace

from qo.engine import Engine
from qo.model import Filter, Status, Task, check_id, cursor, renew
from qo.web.remote.checks import MOST
from qo.web.remote.messages import LEASE, Heartbeat
from qo.web.remote.time_limits import TimeLimits
from qo.web.remote.worker_registry import WorkerRegistry, WorkerSession, check_capacity

_STEP = 32  # tasks read at once: they may have large payloads
_GRACE = 15.0  # seconds beyond a task's time limit that a lease lasts: by then the server has ended the attempt


async def beat(
    engine: Engine, registry: WorkerRegistry, session: WorkerSession, asked: Heartbeat, limits: TimeLimits
) -> list[str]:
    """Renew what the worker holds; the ids it should stop working on."""
    named = None if asked.current_tasks is None else {check_id(task_id) for task_id in asked.current_tasks[:MOST]}
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
    """What the worker holds, without payloads."""
    where = Filter(worker_id=worker_id, statuses=(Status.RUNNING,))
    tasks: list[Task] = []
    after = ""
    while len(tasks) < MOST:
        some = await engine.find_without_values(where, limit=_STEP, after=after)
        tasks += [replace(task, payload=b"null", result=None) for task in some]
        if len(some) < _STEP:
            break
        after = cursor(some[-1])
    return tasks
