"""How many requests a token may make a second: a bucket of tokens for each, filled as time passes."""

from qo.clock import Clock, boot_clock


class RequestRateLimit:
    def __init__(self, rate: float, clock: Clock = boot_clock) -> None:
        self._rate, self._most = rate, max(1.0, rate)
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by whom: what was left, and when

    def take(self, who: str) -> float:
        """0 if the request is within the rate, else the seconds until it would be."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        left, at = self._left.get(who, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        if left < 1:
            self._left[who] = (left, now)
            return (1 - left) / self._rate
        self._left[who] = (left - 1, now)
        return 0.0
