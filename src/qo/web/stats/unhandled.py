"""Pending tasks whose type no connected worker handles, read from the store at most every few seconds."""

import asyncio
from collections.abc import Iterable, Mapping

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.handled_types import find_unhandled, is_unhandled
from qo.model import Status, Task
from qo.web.callers import AccessLimits

_MIN_AGE, _MAX_AGE = 1.0, 30.0  # seconds for which a read is reused
_AGE_FACTOR = 200  # a read is reused for this many times its duration

Lanes = Mapping[tuple[str, str], int]  # number of pending tasks, by queue and type


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
                self._read_again_at = boot_clock() + min(_MAX_AGE, max(_MIN_AGE, _AGE_FACTOR * took))
        return self._lanes

    async def ids(self, tasks: Iterable[Task]) -> set[str]:
        """The ids of the tasks that are pending and that no worker handles."""
        pending = [task for task in tasks if task.status is Status.PENDING]
        lanes = await self.lanes() if pending else {}
        return {task.id for task in pending if is_unhandled(task, lanes)}

    async def by_type(self, limits: AccessLimits) -> dict[str, int]:
        """How many such tasks there are, by type, inside the limits of a caller."""
        numbers: dict[str, int] = {}
        for (queue, type_), number in (await self.lanes()).items():
            if limits.includes(queue, type_):
                numbers[type_] = numbers.get(type_, 0) + number
        return numbers
