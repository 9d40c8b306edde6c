"""Since when the task waiting longest has been due, queue by queue, without reading the queue.

A listing may begin at any instant, so its end is found by steps that double and then shrink. The task found is read
again at each look, and as long as it waits it is the answer.
"""

from collections.abc import Iterable

from qo.engine import Engine
from qo.model import Filter, Status, Task, cursor
from qo.web.callers import WHOLE_STORE, AccessLimits

PAGE = 100  # a shorter queue is read whole
_STEPS = 24  # a search makes at most so many: from a second to half a year
_FIRST_STEP = 1.0  # seconds
_MOST_QUEUES = 50


class OldestTasks:
    def __init__(self, engine: Engine, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine, self._types = engine, tuple(sorted(limits.types))
        self._known: dict[str, Task] = {}

    async def look(self, queues: Iterable[str], now: float) -> dict[str, float | None]:
        """For each queue something waits in; None: nothing there is due."""
        await self._forget()
        return {queue: await self._of(queue, now) for queue in list(queues)[:_MOST_QUEUES]}

    async def _forget(self) -> None:
        """Those claimed meanwhile."""
        known = list(self._known.items())
        tasks = await self._engine.get_without_values([task.id for _, task in known]) if known else []
        for (queue, _), task in zip(known, tasks, strict=True):
            if task is None or task.status is not Status.PENDING:
                del self._known[queue]

    async def _of(self, queue: str, now: float) -> float | None:
        if (known := self._known.get(queue)) is not None:
            return known.due_at
        where = Filter(queues=(queue,), types=self._types, statuses=(Status.PENDING,))
        page = await self._engine.find_without_values(where, limit=PAGE)
        if len(page) == PAGE:
            page += await self._end(where, page[-1])
        due = [task for task in page if task.available_at <= now]
        if not due:
            return None
        first = min(due, key=lambda task: task.due_at)
        if len(page) > PAGE:
            self._known[queue] = first
        return first.due_at

    async def _end(self, where: Filter, last: Task) -> list[Task]:
        """The last page of the listing, as near as the steps come."""
        step, oldest = _FIRST_STEP, last
        for _ in range(_STEPS):
            found = await self._engine.find_without_values(where, limit=1, created_before=oldest.created_at - step)
            if found:
                oldest, step = found[0], step * 2
            elif len(rest := await self._engine.find_without_values(where, limit=PAGE, after=cursor(oldest))) < PAGE:
                return [*rest, oldest]
            else:
                oldest, step = rest[-1], max(_FIRST_STEP / 1000, step / 4)
        return [oldest]
