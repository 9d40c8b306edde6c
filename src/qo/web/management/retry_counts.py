"""How many tasks wait for their next attempt, by type. This dialect counts them as failed."""

import asyncio
from collections import Counter

from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Counts, Filter, Status, cursor
from qo.web.callers import WHOLE_STORE, AccessLimits

_PAGE_SIZE = 500
_CHEAP = 1000  # pending tasks; the answer for more is kept for a while, because some stores look at each of them
_REST_FACTOR = 20.0  # times as long as counting took, its answer is kept
_LONGEST_REST = 60.0  # seconds
_WAITING = Filter(statuses=(Status.PENDING,), retrying=True)


class RetryCounts:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: Counter[tuple[str, str]] = Counter()  # by queue and type
        self._known_until = float("-inf")
        self._turn = asyncio.Lock()  # requests that ask at the same time share one count

    async def by_type(self, counts: Counts, limits: AccessLimits = WHOLE_STORE) -> Counter[str]:
        """Of the tasks within the limits. `counts` tells how many tasks are pending in all."""
        found = Counter[str]()
        for (queue, type), number in (await self._by_lane(counts)).items():
            if limits.includes(queue, type):
                found[type] += number
        return found

    async def _by_lane(self, counts: Counts) -> Counter[tuple[str, str]]:
        pending = sum(number for lane, number in counts.items() if lane.status is Status.PENDING)
        if not pending:
            return Counter()
        async with self._turn:
            began = boot_clock()
            if pending <= _CHEAP or began >= self._known_until:
                self._known = await self._count()
                self._known_until = boot_clock() + min(_LONGEST_REST, _REST_FACTOR * (boot_clock() - began))
            return self._known

    async def _count(self) -> Counter[tuple[str, str]]:
        found, after = Counter[tuple[str, str]](), ""
        while page := await self._engine.find_without_values(_WAITING, limit=_PAGE_SIZE, after=after):
            found.update((task.queue, task.type) for task in page)
            if len(page) < _PAGE_SIZE:
                break
            after = cursor(page[-1])
        return found
