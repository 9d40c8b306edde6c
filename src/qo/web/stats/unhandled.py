"""Which pending tasks no worker handles, read from the store at most every few seconds."""

import asyncio
from collections.abc import Iterable, Mapping

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.handled_types import find_unhandled
from qo.model import Status, Task
from qo.web.callers import AccessLimits

_MIN_AGE, _MAX_AGE = 1.0, 30.0  # seconds for which an answer is used again
_COSTS = 200  # it is used again for this many times as long as it took to read

Lanes = Mapping[tuple[str, str], int]  # how many pending tasks, by queue and type


class UnhandledTypes:
    def __init__(self, engine: Engine, clock: Clock, *, dead_after: float) -> None:
        self._engine, self._clock, self._dead_after = engine, clock, dead_after
        self._lanes: Lanes = {}
        self._read_again_at = float("-inf")
        self._reading = asyncio.Lock()

    async def lanes(self) -> Lanes:
        async with self._reading:
            if boot_clock() >= self._read_again_at:
                began = boot_clock()
                self._lanes = await find_unhandled(self._engine, self._clock(), dead_after=self._dead_after)
                took = boot_clock() - began
                self._read_again_at = boot_clock() + min(_MAX_AGE, max(_MIN_AGE, _COSTS * took))
        return self._lanes

    async def ids(self, tasks: Iterable[Task]) -> set[str]:
        """The ids of those tasks that wait and that no worker handles."""
        pending = [task for task in tasks if task.status is Status.PENDING]
        lanes = await self.lanes() if pending else {}
        return {task.id for task in pending if (task.queue, task.type) in lanes}

    async def by_type(self, limits: AccessLimits) -> dict[str, int]:
        """Numbers of such tasks by type, within a caller's limits."""
        numbers: dict[str, int] = {}
        for (queue, type_), number in (await self.lanes()).items():
            if limits.includes(queue, type_):
                numbers[type_] = numbers.get(type_, 0) + number
        return numbers
