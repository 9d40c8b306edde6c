"""Steps of a store's clock, noticed by comparing it with a clock that nobody sets.

A lease is an instant by the store's clock. When that clock is set ahead, every lease looks over although its holder
lives; when it is set back, the leases of dead holders last longer. Whoever ends leases has to know of the step.
"""

import logging
from math import inf
from typing import NamedTuple

from qo.clock import Clock
from qo.engine import Engine

log = logging.getLogger("qo.clock")
_SHORTEST_STEP = 1.0  # seconds; less is within the grace of every lease
_MAX_STEPS = 16  # kept: a lease that has seen more steps than these is judged by the last ones


class _Look(NamedTuple):
    now: float  # by the store's clock
    low: float  # the distance between the two clocks lies between these: the store was asked
    high: float  # at some moment between sending and receiving
    at: float  # by the clock that nobody sets


class _Step(NamedTuple):
    until: float  # instants up to this one, by the store's clock, were stamped before the step
    size: float  # seconds; negative: the clock was set back


class ClockSteps:
    """Notices steps between two looks. The first look notices none."""

    def __init__(self, engine: Engine, elapsed: Clock) -> None:
        self._engine, self._elapsed = engine, elapsed
        self._last: _Look | None = None
        self._steps: list[_Step] = []

    async def look(self) -> float:
        """Look at the store's clock; by how much it has been set since the last look: 0.0 if it was not."""
        sent = self._elapsed()
        now = await self._engine.now()
        received = self._elapsed()
        before, self._last = self._last, _Look(now, now - received, now - sent, received)
        if before is None:
            return 0.0
        if (least := self._last.low - before.high) >= _SHORTEST_STEP:
            # As large as it may have been, for as many instants as it may concern: a lease rather lasts longer.
            return self._note(_Step(now - least, self._last.high - before.low))
        if before.low - self._last.high >= _SHORTEST_STEP:
            size = self._last.high - before.low
            return self._note(_Step(before.now + size, size))
        return 0.0

    def _note(self, step: _Step) -> float:
        self._steps = [*self._steps, step][-_MAX_STEPS:]
        direction = "ahead" if step.size > 0 else "back"
        log.warning("the store's clock was set %s by %.0f s; leases last as long as before", direction, abs(step.size))
        return step.size

    def now(self) -> float:
        """The store's time, reckoned from the last look; infinity before the first."""
        return inf if self._last is None else self._last.now + self._elapsed() - self._last.at

    def ahead_since(self, instant: float) -> float:
        """Seconds that the clock has gained by steps since this instant of its own; 0.0 if it has lost."""
        return max(0.0, sum(step.size for step in self._steps if instant <= step.until))
