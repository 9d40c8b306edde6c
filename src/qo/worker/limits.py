"""How many tasks may start now: token buckets by type and for the whole worker, and concurrency limits by type."""

from collections.abc import Mapping

from qo.clock import Clock
from qo.notes import Controls
from qo.tasks import Handler

WHOLE = ""  # key of the bucket for the whole worker; no type has an empty name


class TokenBucket:
    """Lets `rate` tasks per second start, and after a pause up to one second's worth at once."""

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

    def wait(self) -> float:
        """Seconds until the next token."""
        return max(0.0, (1.0 - self._tokens) / self.rate)


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


class Limits(RateLimits):
    """The limits of handlers and controls on the tasks a worker may start."""

    def apply_controls(self, control: Controls, handlers: Mapping[str, Handler]) -> None:
        """Apply the rates. Those of the controls override those that handlers declare."""
        declared = {type: handler.options.rate_limit for type, handler in handlers.items()}
        self.set_rates(declared | control.rate_limits | {WHOLE: control.rate_limit})

    def per_type_limits(self, handlers: Mapping[str, Handler], held: Mapping[str, int]) -> dict[str, int]:
        """How many more tasks of each limited type may be claimed."""
        now, most = self._clock(), {}
        for type, handler in handlers.items():
            allowed = []
            if handler.options.concurrency:
                allowed.append(handler.options.concurrency - held.get(type, 0))
            if (bucket := self._buckets.get(type)) is not None:
                allowed.append(bucket.available(now))
            if allowed:
                most[type] = max(0, min(allowed))
        return most

    def returned(self, type: str) -> None:
        """Return the token of a task that did not start."""
        for key in (type, WHOLE):
            if (bucket := self._buckets.get(key)) is not None:
                bucket.take(-1)

    def wait(self, longest: float) -> float:
        """Seconds until a token may become available, at most `longest`."""
        self.total(1)
        return min([longest, *(max(0.001, bucket.wait()) for bucket in self._buckets.values())])

    def next_token(self, longest: float) -> float:
        """Seconds until a type without tokens gets one; `longest` if every type has tokens."""
        now = self._clock()
        spent = [bucket for bucket in self._buckets.values() if bucket.available(now) < 1]
        return min([longest, *(max(0.001, bucket.wait()) for bucket in spent)])
