"""The store's clock, reckoned from the last look at it by a clock that nobody sets.

Leases and due times are stamped by the store. What is compared with them, and with what other machines wrote, must be
by the same clock: a machine whose own is wrong by minutes would take living workers for dead, or be taken for dead.
"""

import logging

from qo.clock import Clock, ClockDistance, boot_clock
from qo.engine import Engine

log = logging.getLogger("qo.clock")
_INTERVAL = 60.0  # seconds between two looks at the store's clock
_WORTH_A_WORD = 5.0  # seconds of distance from which on it is logged


class StoreTime:
    """A Clock. Until it has looked, it is this machine's own."""

    def __init__(self, engine: Engine, clock: Clock, elapsed: Clock | None = None) -> None:
        self._engine, self._clock = engine, clock
        self._distance = ClockDistance(clock, elapsed)
        self._began: float | None = None  # the store's time when the clock that nobody sets was at 0
        self._told = 0.0
        self._looks_at = float("-inf")

    def __call__(self) -> float:
        return self._clock() if self._began is None else self._distance.elapsed() + self._began

    async def look(self) -> None:
        """Look at the store's clock, if that was not done within the last minute or this machine's was set since."""
        if self._distance.has_changed():
            self._looks_at = float("-inf")
        if boot_clock() < self._looks_at:
            return
        before = self._clock()
        now = await self._engine.now()
        after = self._clock()
        self._looks_at = boot_clock() + _INTERVAL
        # The store was asked at some moment between the two: the smallest distance that explains its answer.
        offset = max(0.0, now - after) + min(0.0, now - before)
        self._began = after + offset - self._distance.elapsed()
        if abs(offset - self._told) >= _WORTH_A_WORD:
            self._told = offset
            direction = "behind" if offset > 0 else "ahead of"
            log.warning(
                "this machine's clock is %.0f s %s the store's; the store's is used. Set the machine's clock (NTP)",
                abs(offset),
                direction,
            )
