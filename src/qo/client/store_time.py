"""The store's clock, kept as a distance from this machine's own.

Leases and due times are stamped by the store. What is compared with them, and with what other machines wrote, must be
by the same clock: a machine whose own is wrong by minutes would take living workers for dead, or be taken for dead.
"""

import logging

from qo.clock import Clock, boot_clock
from qo.engine import Engine

log = logging.getLogger("qo.clock")
_INTERVAL = 60.0  # seconds between two looks at the store's clock
_WORTH_A_WORD = 5.0  # seconds of distance from which on it is logged


class StoreTime:
    """A Clock. A store that is away leaves the distance as it was."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._offset, self._told = 0.0, 0.0
        self._looks_at = float("-inf")

    def __call__(self) -> float:
        return self._clock() + self._offset

    async def look(self) -> None:
        """Compare the two clocks, if that was not done within the last minute."""
        if boot_clock() < self._looks_at:
            return
        before = self._clock()
        now = await self._engine.now()
        after = self._clock()
        self._looks_at = boot_clock() + _INTERVAL
        # The store was asked at some moment between the two: the smallest distance that explains its answer.
        self._offset = max(0.0, now - after) + min(0.0, now - before)
        if abs(self._offset - self._told) >= _WORTH_A_WORD:
            self._told = self._offset
            direction = "behind" if self._offset > 0 else "ahead of"
            log.warning(
                "this machine's clock is %.0f s %s the store's; the store's is used. Set the machine's clock (NTP)",
                abs(self._offset),
                direction,
            )
