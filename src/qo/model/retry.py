"""When to try again: numbers only. What a failure does to a task is in `outcome`."""

from math import inf

from msgspec import Struct


class RetryPolicy(Struct, frozen=True, kw_only=True, gc=False):
    """Exponential back-off with jitter. No delay is longer than `max`, whatever the jitter."""

    initial: float = 1.0
    max: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.25  # ± this share of the delay
    timeout_growth: float = 1.0  # each retry may take this much longer than the try before

    def delay(self, failures: int, luck: float) -> float:
        """Seconds before the next try after the given number of failures. `luck` is uniform in [0, 1)."""
        try:
            exact = min(self.max, self.initial * float(self.multiplier) ** (failures - 1))
        except OverflowError:  # thousands of failures: far beyond any `max`
            exact = self.max if self.initial else 0.0
        return min(self.max, exact * (1 + self.jitter * (2 * luck - 1)))

    def growth(self, failures: int) -> float:
        """How many times as long as the first try the next one may take, after so many failures."""
        try:
            return float(self.timeout_growth) ** failures
        except OverflowError:
            return inf


DEFAULT_POLICY = RetryPolicy()
SLOW_POLICY = RetryPolicy(initial=10.0, multiplier=4.0, max=21_600.0, jitter=0.2)  # 10 s, 40 s, 2.7 min, ... to 6 h
