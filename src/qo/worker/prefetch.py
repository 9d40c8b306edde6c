"""How many tasks a worker prefetches: those that will start soon, judged by recent run times of each type."""

from qo.clock import Clock

HORIZON, _MAX_HORIZON = 0.1, 1.0  # seconds of work to prefetch, at least and at most
_RATE_WINDOW = 0.02  # seconds over which the rate is measured
_OLD_RATE_WEIGHT = 0.5  # weight of the previous rate when the rate falls
_RUN_TIME_WEIGHT = 0.2  # weight of the latest run in the average run time of its type
_MIN_RUN_TIME = 1e-6  # seconds; avoids a division by zero


class Prefetch:
    def __init__(self, limit: int, slots: int, clock: Clock) -> None:
        self._limit, self._slots, self._clock = limit, slots, clock
        self._since, self._ended, self._rate = clock(), 0, 0.0
        self._horizon = HORIZON
        self._usual: dict[str, float] = {}  # average seconds of a run, by type

    def ended(self, type: str, took: float) -> None:
        self._ended += 1
        usual = self._usual.get(type, took)
        self._usual[type] = usual + (took - usual) * _RUN_TIME_WEIGHT

    def claimed(self, took: float) -> None:
        """Adapt to a claim that took `took` seconds: the prefetched tasks should last until the next one returns."""
        self._horizon = min(_MAX_HORIZON, max(HORIZON, took))

    def ahead(self) -> int:
        """How many tasks to hold beyond the running ones, if all are quick."""
        now = self._clock()
        passed = now - self._since
        if passed >= _RATE_WINDOW:
            rate = self._ended / passed
            # The number of claimed tasks limits the measured rate, so a rising rate is adopted at once.
            self._rate = max(rate, _OLD_RATE_WEIGHT * self._rate + (1 - _OLD_RATE_WEIGHT) * rate)
            self._since, self._ended = now, 0
        return min(self._limit, int(self._rate * self._horizon))

    def ahead_of(self, type: str) -> int:
        """How many tasks of this type all slots together would start within the horizon; 0 if none has ended yet."""
        usual = self._usual.get(type)
        return 0 if usual is None else min(self._limit, int(self._slots * self._horizon / max(usual, _MIN_RUN_TIME)))
