"""How far ahead a worker may claim: as far as its tasks are quick, so that slow ones wait for whoever is free."""

from qo.clock import Clock

HORIZON, _FARTHEST = 0.1, 1.0  # seconds of work held ahead, at least and at most
_WINDOW = 0.02  # seconds over which the rate is measured
_MEMORY = 0.5  # weight of the past in a rate that falls


class Pace:
    def __init__(self, most: int, clock: Clock) -> None:
        self._most, self._clock = most, clock
        self._since, self._ended, self._rate = clock(), 0, 0.0
        self._horizon = HORIZON

    def ended(self, number: int) -> None:
        self._ended += number

    def claimed(self, took: float) -> None:
        """A claim took so many seconds; there should be work until the next one is through."""
        self._horizon = min(_FARTHEST, max(HORIZON, took))

    def ahead(self) -> int:
        """Tasks worth holding beyond those that run."""
        now = self._clock()
        passed = now - self._since
        if passed >= _WINDOW:
            rate = self._ended / passed
            # What was claimed bounds what could end: a worker that gets faster is believed at once.
            self._rate = max(rate, _MEMORY * self._rate + (1 - _MEMORY) * rate)
            self._since, self._ended = now, 0
        return min(self._most, int(self._rate * self._horizon))
