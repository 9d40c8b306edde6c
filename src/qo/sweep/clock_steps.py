"""Detects steps of a store's clock by comparing it with a monotonic clock.

A lease ends at an instant of the store's clock. If that clock is set ahead, all leases seem to have expired although
their workers live. If it is set back, the leases of dead workers last longer. LeaseExpiry corrects for both.
"""

import logging
from math import inf
from typing import NamedTuple

from qo.clock import Clock
from qo.engine import Engine

log = logging.getLogger("qo.clock")
_MIN_STEP = 1.0  # seconds; shorter steps are covered by the grace of leases
_MAX_STEPS = 16  # steps that are remembered


class _ClockReading(NamedTuple):
    now: float  # by the store's clock
    low: float  # lower and upper bound of the difference between the clocks: the store read its clock
    high: float  # at some moment between the request and the answer
    at: float  # by the monotonic clock


class _Step(NamedTuple):
    until: float  # instants of the store's clock up to this one were before the step
    size: float  # seconds; negative: the clock was set back


class ClockSteps:
    """Detects steps between two calls of `update`. The first call detects none."""

    def __init__(self, engine: Engine, elapsed: Clock) -> None:
        self._engine, self._elapsed = engine, elapsed
        self._last: _ClockReading | None = None
        self._steps: list[_Step] = []

    async def update(self) -> float:
        """Read the store's clock. Returns the seconds by which it was set since the last call; 0.0 if it was not."""
        sent = self._elapsed()
        now = await self._engine.now()
        received = self._elapsed()
        before, self._last = self._last, _ClockReading(now, now - received, now - sent, received)
        if before is None:
            return 0.0
        if (least := self._last.low - before.high) >= _MIN_STEP:
            # Use the largest possible step and the latest possible instant, so that no lease ends early.
            return self._note(_Step(now - least, self._last.high - before.low))
        if before.low - self._last.high >= _MIN_STEP:
            size = self._last.high - before.low
            return self._note(_Step(before.now + size, size))
        return 0.0

    def _note(self, step: _Step) -> float:
        if step.size < 0:
            # The clock passes through the same instants again. Leases written at them from now on are after all steps.
            self._steps = [each._replace(until=min(each.until, step.until)) for each in self._steps]
        self._steps = [*self._steps, step][-_MAX_STEPS:]
        direction = "ahead" if step.size > 0 else "back"
        log.warning("the store's clock was set %s by %.0f s; leases last as long as before", direction, abs(step.size))
        return step.size

    def now(self) -> float:
        """The store's time, computed from the last reading; infinity before the first."""
        return inf if self._last is None else self._last.now + self._elapsed() - self._last.at

    def ahead_since(self, instant: float) -> float:
        """Seconds by which steps have set the clock ahead since this instant of it; 0.0 if they set it back."""
        return max(0.0, sum(step.size for step in self._steps if instant <= step.until))
