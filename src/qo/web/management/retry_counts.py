"""The number of tasks that wait for a retry, by type. The management API counts them as failed."""

import asyncio
from collections import Counter

from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Counts, Filter, Status, cursor
from qo.web.callers import WHOLE_STORE, AccessLimits

_PAGE_SIZE = 500
_MAX_CHEAP = 1000  # pending tasks; with more, a count is reused, because some stores read each pending task
_AGE_FACTOR = 20.0  # a count is reused for this many times its duration
_MAX_AGE = 60.0  # seconds
_WAITING = Filter(statuses=(Status.PENDING,), retrying=True)


class RetryCounts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: Counter[tuple[str, str]] = Counter()  # by queue and type
        self._known_until = float("-inf")
        self._counting = asyncio.Lock()  # concurrent requests share one count

    async def by_type(self, counts: Counts, limits: AccessLimits = WHOLE_STORE) -> Counter[str]:
        """Counts inside the limits. `counts` are the counts of the whole store."""
        found = Counter[str]()
        for (queue, type), number in (await self._by_lane(counts)).items():
            if limits.includes(queue, type):
                found[type] += number
        return found

    async def _by_lane(self, counts: Counts) -> Counter[tuple[str, str]]:
        pending = sum(number for lane, number in counts.items() if lane.status is Status.PENDING)
        if not pending:
            return Counter()
        async with self._counting:
            began = boot_clock()
            if pending <= _MAX_CHEAP or began >= self._known_until:
                self._known = await self._count()
                self._known_until = boot_clock() + min(_MAX_AGE, _AGE_FACTOR * (boot_clock() - began))
            return self._known

    async def _count(self) -> Counter[tuple[str, str]]:
        found, after = Counter[tuple[str, str]](), ""
        while page := await self._engine.find_without_values(_WAITING, limit=_PAGE_SIZE, after=after):
            found.update((task.queue, task.type) for task in page)
            if len(page) < _PAGE_SIZE:
                break
            after = cursor(page[-1])
        return found
