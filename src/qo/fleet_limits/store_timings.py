"""Measures how long the store takes to write and read the notes of limits, and derives intervals from it."""

from qo.fleet_limits.limit_state import MAX_HORIZON, tolerance
from qo.model import Limit

_HORIZON = 0.25  # seconds: a claimed task waits at most this long for its start
_CALLS_AHEAD = 8  # on a slow store, a task waits for the duration of this many writes
_WRITES, _MAX_LEAD = 3, 3.0  # writes of an admission, and the maximum time for them in seconds
_MIN_REFRESH, _MAX_REFRESH = 0.5, 5.0  # seconds after which the note of a limit that blocks tasks is read again
_DURATION_FACTOR = 20  # refresh at most every 20 times the duration of a read: each read costs money on a bucket


class StoreTimings:
    def __init__(self, *, starts_at_once: bool) -> None:
        self._starts_at_once = starts_at_once
        self.write_took = self.read_took = 0.0  # seconds of the last write and read

    def horizon(self, limit: Limit) -> float:
        """How many seconds in advance a start may be reserved."""
        if self._starts_at_once:
            return self.lead + tolerance(limit)
        return min(MAX_HORIZON, max(_HORIZON, _CALLS_AHEAD * self.write_took))

    @property
    def lead(self) -> float:
        """Seconds from now to the first start time. Tasks that start together must start after the write."""
        return self.time_to_write if self._starts_at_once else 0.0

    @property
    def time_to_write(self) -> float:
        """Seconds in which the notes of two limits are usually written."""
        return min(_MAX_LEAD, _WRITES * self.write_took)

    @property
    def refresh_interval(self) -> float:
        """Seconds after which the note of a limit that blocks tasks is read again."""
        return min(_MAX_REFRESH, max(_MIN_REFRESH, _DURATION_FACTOR * self.read_took))
