"""Token buckets: how many tasks or requests may start now."""

from collections.abc import Mapping

from qo.clock import Clock

WHOLE = ""  # key of the bucket for all types together; no type has an empty name


class TokenBucket:
    """Lets `rate` tasks per second start, and after a pause up to one second's worth at a time."""

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._capacity = max(1.0, rate)
        self._tokens, self._at = self._capacity, now

    def available(self, now: float) -> int:
        self._tokens = min(self._capacity, self._tokens + (now - self._at) * self.rate)
        self._at = now
        return int(self._tokens + 1e-9)

    def take(self, number: int) -> None:
        self._tokens -= number

    def wait(self, tokens: float = 1.0) -> float:
        """Seconds until this many tokens are available, counted from the last `available`."""
        return max(0.0, (tokens - self._tokens) / self.rate)


class RateLimits:
    """A token bucket for each type that has a rate, and one for all tasks together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def set_rates(self, rates: Mapping[str, float]) -> None:
        """Set the rates by type; 0 is unlimited. A bucket whose rate did not change keeps its tokens."""
        now, old = self._clock(), self._buckets
        self._buckets = {
            key: old[key] if key in old and old[key].rate == rate else TokenBucket(rate, now)
            for key, rate in rates.items()
            if rate > 0
        }

    def total(self, room: int) -> int:
        bucket = self._buckets.get(WHOLE)
        return room if bucket is None else min(room, bucket.available(self._clock()))

    def started(self, type: str) -> None:
        if not self._buckets:
            return
        for key in (type, WHOLE):
            if (bucket := self._buckets.get(key)) is not None:
                bucket.take(1)
