"""How many requests a token may make a second: a token bucket for each."""

from qo.clock import Clock, boot_clock
from qo.worker.limits import TokenBucket


class RequestRateLimit:
    def __init__(self, rate: float, clock: Clock = boot_clock) -> None:
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, TokenBucket] = {}  # by caller

    def take(self, who: str) -> float:
        """0 if the request is within the rate, else the seconds until it would be."""
        if self._rate <= 0:
            return 0.0
        now = self._clock()
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._buckets[who] = TokenBucket(self._rate, now)
        if bucket.available(now) < 1:
            return bucket.wait()
        bucket.take(1)
        return 0.0
