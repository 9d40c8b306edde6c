"""A look at everything between in and out, and waiting for a task to end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

from msgspec import Struct

from qo import notes
from qo.client.describe import Seconds, seconds
from qo.client.opened import Opened
from qo.clock import boot_clock
from qo.codec import decode_value, plain_task
from qo.damage import decode_damage, note_name
from qo.errors import ResultTimeout, TaskFailed, TaskNotFound
from qo.model import FINISHED, Event, Filter, Status, Task, check_id, cursor
from qo.stats import Interval, read_stats

PAGE = 500
_QUICKEST, _SLOWEST = 0.005, 0.25  # seconds between two looks for a result

# Inside the class `list` is a method.
Tasks: TypeAlias = list[Task]
Events: TypeAlias = list[Event]
Intervals: TypeAlias = list[Interval]
Workers: TypeAlias = list[notes.WorkerNote]


class QueueState(Struct, frozen=True, kw_only=True):
    """All tasks at one moment, newest first."""

    tasks: tuple[Task, ...] = ()
    version: int | None = None  # grows with every write, where the whole queue is one object

    def pending(self, type: str | None = None) -> Tasks:
        """In the order they come."""
        waiting = (task for task in self.tasks if task.status is Status.PENDING and type in (None, task.type))
        return sorted(waiting, key=lambda task: (task.rank, task.created_at))

    def running(self) -> Tasks:
        return [task for task in self.tasks if task.status is Status.RUNNING]

    def find(self, task_id: str) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)


class Looking(Opened):
    async def get(self, task_id: str) -> Task | None:
        """The task as it is now; None if there is none. Raises DamagedTask if what is stored cannot be read."""
        (task,) = await self.engine.get([check_id(task_id)])
        if task is None:
            await self.check_not_damaged(task_id)
            return None
        return plain_task(task)

    async def check_not_damaged(self, task_id: str) -> None:
        """For a task that is missing: raises DamagedTask if it was set aside because it cannot be read."""
        note = await self.engine.read_note(note_name(task_id))
        if note is not None:
            raise decode_damage(task_id, note.data)

    async def list(self, where: Filter | None = None, *, limit: int = 50, after: str = "") -> Tasks:
        """One page of tasks, newest first. The next page starts `after=qo.cursor(page[-1])`."""
        return [plain_task(task) for task in await self.engine.find(where or Filter(), limit=limit, after=after)]

    async def all(self, where: Filter | None = None) -> AsyncIterator[Task]:
        """Every matching task, newest first, page by page."""
        after = ""
        while page := await self.list(where, limit=PAGE, after=after):
            for task in page:
                yield task
            after = cursor(page[-1])

    async def read_state(self) -> QueueState:
        """Every task there is now, to look at. On a storage of one object it is one consistent read."""
        found = await self.engine.snapshot()
        return QueueState(tasks=tuple(plain_task(task) for task in found.tasks), version=found.version)

    async def history(self, task_id: str) -> Events:
        return await self.engine.history(check_id(task_id))

    async def stats(self) -> dict[str, Any]:
        """Counts by status, then the same by type and by queue."""
        total: dict[str, int] = {status.value: 0 for status in Status}
        by_type: dict[str, dict[str, int]] = {}
        by_queue: dict[str, dict[str, int]] = {}
        for lane, number in (await self.engine.count()).items():
            for counts in (total, by_type.setdefault(lane.type, {}), by_queue.setdefault(lane.queue, {})):
                counts[lane.status.value] = counts.get(lane.status.value, 0) + number
        return {**total, "by_type": by_type, "by_queue": by_queue}

    async def activity(self, since: Seconds = 3600.0) -> Intervals:
        """What all processes have done with tasks in the last `since` seconds, oldest first.

        Minutes for the last hour, hours for a week. Counts may lag by some seconds; `qo.stats.add_up` adds them up.
        """
        await self.recorder.flush()
        now = self._clock()
        return await read_stats(self.engine, now - seconds(since), now)

    async def result(
        self,
        task_id: str,
        *,
        timeout: Seconds | None = None,
        decode: Callable[[bytes], Any] = decode_value,
    ) -> Any:
        """Wait for a task to end and return its result, or raise TaskFailed or ResultTimeout."""
        task = await self.ended(task_id, timeout=timeout)
        if task.result is None:
            why = task.error or "it has no result"
            raise TaskFailed(f"task {task_id} is {task.status}: {why}", task_id=task_id)
        return decode(task.result)

    async def ended(self, task_id: str, *, timeout: Seconds | None = None) -> Task:
        """Wait for a task to end."""
        until = None if timeout is None else boot_clock() + seconds(timeout)
        pause = _QUICKEST
        while True:
            task = await self.get(task_id)
            if task is None:
                raise TaskNotFound(f"there is no task {task_id}", task_id=task_id)
            if task.status in FINISHED:
                return task
            left = pause if until is None else until - boot_clock()
            if left <= 0:
                raise ResultTimeout(f"task {task_id} is still {task.status}", task_id=task_id)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, _SLOWEST)

    async def workers(self) -> Workers:
        """Everyone registered here, the silent ones too."""
        return await notes.workers(self.engine)
