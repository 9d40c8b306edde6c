"""The store's clock, extrapolated from the last reading with a local clock that is never set.

The store stamps leases and due times. Times that are compared with them must be from the same clock: a machine whose
clock is wrong by minutes would mark live workers as dead, or be marked as dead itself.
"""

import logging

from qo.clock import Clock, ClockDistance, boot_clock
from qo.engine import Engine

log = logging.getLogger("qo.clock")
_READ_INTERVAL = 60.0  # seconds between two readings of the store's clock
_MIN_LOGGED_OFFSET = 5.0  # seconds


class StoreTime:
    """A `Clock`. It is the local clock until `update` has read the store's."""

    def __init__(self, engine: Engine, clock: Clock, elapsed: Clock | None = None) -> None:
        self._engine, self._clock = engine, clock
        self._distance = ClockDistance(clock, elapsed)
        self._origin: float | None = None  # the store's time when the local clock was 0
        self._logged_offset = 0.0
        self._next_reading_at = float("-inf")

    def __call__(self) -> float:
        return self._clock() if self._origin is None else self._distance.elapsed() + self._origin

    async def update(self) -> None:
        """Read the store's clock, if the last reading is a minute old or the local clock was set since."""
        if self._distance.has_changed():
            self._next_reading_at = float("-inf")
        if boot_clock() < self._next_reading_at:
            return
        before = self._clock()
        now = await self._engine.now()
        after = self._clock()
        self._next_reading_at = boot_clock() + _READ_INTERVAL
        # The store read its clock between the two local readings. This is the smallest offset that is possible.
        offset = max(0.0, now - after) + min(0.0, now - before)
        self._origin = after + offset - self._distance.elapsed()
        if abs(offset - self._logged_offset) >= _MIN_LOGGED_OFFSET:
            self._logged_offset = offset
            direction = "behind" if offset > 0 else "ahead of"
            log.warning(
                "this machine's clock is %.0f s %s the store's, which is used instead; set the machine's clock (NTP)",
                abs(offset),
                direction,
            )
