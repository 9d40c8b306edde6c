"""How far ahead a worker may claim: only what will start within a moment, by what each type took lately."""

from qo.clock import Clock

HORIZON, _FARTHEST = 0.1, 1.0  # seconds of work held ahead, at least and at most
_WINDOW = 0.02  # seconds over which the rate is measured
_MEMORY = 0.5  # weight of the past in a rate that falls
_WEIGHT = 0.2  # of the latest run in what its type usually takes
_SHORTEST = 1e-6  # seconds; no run takes less


class Prefetch:
    def __init__(self, most: int, slots: int, clock: Clock) -> None:
        self._most, self._slots, self._clock = most, slots, clock
        self._since, self._ended, self._rate = clock(), 0, 0.0
        self._horizon = HORIZON
        self._usual: dict[str, float] = {}  # seconds a run takes, by type

    def ended(self, type: str, took: float) -> None:
        self._ended += 1
        usual = self._usual.get(type, took)
        self._usual[type] = usual + (took - usual) * _WEIGHT

    def claimed(self, took: float) -> None:
        """A claim took so many seconds; there should be work until the next one is through."""
        self._horizon = min(_FARTHEST, max(HORIZON, took))

    def ahead(self) -> int:
        """Tasks worth holding beyond those that run, if all are quick."""
        now = self._clock()
        passed = now - self._since
        if passed >= _WINDOW:
            rate = self._ended / passed
            # What was claimed bounds what could end: a worker that gets faster is believed at once.
            self._rate = max(rate, _MEMORY * self._rate + (1 - _MEMORY) * rate)
            self._since, self._ended = now, 0
        return min(self._most, int(self._rate * self._horizon))

    def ahead_of(self, type: str) -> int:
        """Tasks of this type that all slots together would start within the horizon; 0 if none has ended yet."""
        usual = self._usual.get(type)
        return 0 if usual is None else min(self._most, int(self._slots * self._horizon / max(usual, _SHORTEST)))
