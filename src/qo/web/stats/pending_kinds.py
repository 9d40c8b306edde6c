"""How many pending tasks are ready, scheduled and retrying, counted at most every few seconds."""

import asyncio

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.model import Counts, PendingKind
from qo.pending_counts import PendingCounts, count_pending
from qo.web.callers import WHOLE_STORE, AccessLimits

_AGE_FACTOR = 20.0  # a count is reused for this many times its duration
_MAX_AGE = 60.0  # seconds


class PendingKinds:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._known = PendingCounts()
        self._known_until = float("-inf")
        self._counting = asyncio.Lock()  # concurrent requests share one count

    async def total(self, counts: Counts, limits: AccessLimits = WHOLE_STORE) -> dict[PendingKind, int]:
        """Numbers inside the limits. `counts` are the counts of the whole store."""
        known = await self._counts(counts)
        inside = {lane: kinds for lane, kinds in known.by_lane.items() if limits.includes(*lane)}
        return PendingCounts(by_lane=inside).total()

    async def _counts(self, counts: Counts) -> PendingCounts:
        async with self._counting:
            began = boot_clock()
            if began >= self._known_until:
                self._known = await count_pending(self._engine, counts, self._clock())
                self._known_until = boot_clock() + min(_MAX_AGE, _AGE_FACTOR * (boot_clock() - began))
            return self._known
