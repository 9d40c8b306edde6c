"""Renews the leases of workers over HTTP, and ends attempts at their timeout.

Heartbeats renew the leases of a worker, but not beyond the timeouts of its tasks. The time is measured from the poll,
or from the first heartbeat that this server sees, by a monotonic clock. It is never compared with the clock of the
store.
"""

import asyncio
from collections.abc import Iterable

from msgspec.structs import replace

from qo.client import Client
from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.ids import random_fraction
from qo.model import Change, FailureKind, Filter, Status, Task, after_error, check_id, cursor, renew
from qo.web.remote.checks import MAX_ITEMS
from qo.web.remote.messages import LEASE, Heartbeat
from qo.web.remote.worker_registry import WorkerRegistry, WorkerSession, check_capacity

REPORT_GRACE = 1.0  # seconds that a report may take beyond the timeout
_RETRY_INTERVAL = 1.0  # seconds, if the store is unreachable
_PAGE_SIZE = 32  # tasks; they may be large
_GRACE = 15.0  # seconds that a lease lasts beyond the timeout; the server ends the attempt before


class TimeLimits:
    def __init__(self, client: Client, *, elapsed: Clock = boot_clock) -> None:
        self._client, self._elapsed = client, elapsed
        self.attempts: dict[str, tuple[float, Task]] = {}  # by task id: the deadline and the leased task
        self._timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    def watch(self, tasks: Iterable[Task]) -> None:
        """End these attempts at their deadline. A watched attempt keeps its deadline."""
        now, is_new = self._elapsed(), False
        for task in tasks:
            known = self.attempts.get(task.id)
            if known is None or known[1].lease_id != task.lease_id:
                light = replace(task, payload=b"null", result=None)  # values are not needed
                self.attempts[task.id] = (now + task.time_limit, light)
                is_new = True
        if is_new:  # planning reads all attempts, and every heartbeat calls this for each task
            self._plan()

    def forget(self, task_ids: Iterable[str]) -> None:
        for task_id in task_ids:
            self.attempts.pop(task_id, None)

    def left(self, task: Task) -> float:
        """Seconds until the deadline of the attempt."""
        self.watch([task])
        return self.attempts[task.id][0] - self._elapsed()

    async def enforce(self) -> None:
        """End all overdue attempts. The lease guards the change, so a reported result is not overwritten."""
        late = self._elapsed() - REPORT_GRACE
        due = [task for ends, task in self.attempts.values() if ends <= late]
        if not due:
            return
        changes = [_timed_out(task) for task in due]
        answers = await self._client.engine.apply(changes)
        for task, change, ended in zip(due, changes, answers, strict=True):
            known = self.attempts.get(task.id)
            if known is not None and known[1].lease_id == task.lease_id:
                del self.attempts[task.id]
            if ended:
                self._client.transitions.settled(task, change)

    def close(self) -> None:
        """Stop. The leases expire without the server."""
        self.attempts.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, pause: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.attempts:
            first = min(ends for ends, _ in self.attempts.values())
            pause = max(pause, first + REPORT_GRACE - self._elapsed())
            self._timer = asyncio.get_running_loop().call_later(pause, self._end)

    def _end(self) -> None:
        self._ending = asyncio.create_task(self._end_due())

    async def _end_due(self) -> None:
        try:
            await self.enforce()
        except StorageError:  # the leases expire if this takes long
            self._plan(_RETRY_INTERVAL)
        else:
            self._plan(0.01)


def _timed_out(task: Task) -> Change:
    return after_error(
        task, f"timed out after {task.time_limit:g} s", kind=FailureKind.TIMEOUT, random=random_fraction()
    )


async def beat(
    engine: Engine, registry: WorkerRegistry, session: WorkerSession, message: Heartbeat, limits: TimeLimits
) -> list[str]:
    """Renew the leases of the worker. Returns the ids of tasks that it no longer holds."""
    named = (
        None if message.current_tasks is None else {check_id(task_id) for task_id in message.current_tasks[:MAX_ITEMS]}
    )
    load = check_capacity("current_load", message.current_load)
    if message.status == "dead":
        await registry.leave(session)
        return []
    await limits.enforce()
    held = [task for task in await _tasks_of(engine, session.note.worker_id) if named is None or task.id in named]
    renewals = {task.id: renew(task, min(LEASE, limits.left(task) + _GRACE)) for task in held}
    renewed = dict(zip(renewals, await engine.apply([*renewals.values()]), strict=True))
    note = replace(
        session.note,
        status=message.status,
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
