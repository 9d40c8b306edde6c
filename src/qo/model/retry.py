"""The delays of retries. `failures` decides what happens to the task."""

from math import inf

from msgspec import Struct


class RetryPolicy(Struct, frozen=True, kw_only=True, gc=False):
    """Exponential back-off with jitter. No delay is longer than `max`, whatever the jitter."""

    initial: float = 1.0
    max: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.25  # ± this share of the delay
    timeout_growth: float = 1.0  # the timeout of each retry, as a multiple of the previous one

    def delay(self, failures: int, random: float) -> float:
        """Seconds before the next attempt after this number of failures. `random` is uniform in [0, 1)."""
        try:
            exact = min(self.max, self.initial * float(self.multiplier) ** (failures - 1))
        except OverflowError:  # thousands of failures: far above any `max`
            exact = self.max if self.initial else 0.0
        return min(self.max, exact * (1 + self.jitter * (2 * random - 1)))

    def growth(self, failures: int) -> float:
        """The factor of the timeout after this number of failures."""
        try:
            return float(self.timeout_growth) ** failures
        except OverflowError:
            return inf


DEFAULT_POLICY = RetryPolicy()
SLOW_POLICY = RetryPolicy(initial=10.0, multiplier=4.0, max=21_600.0, jitter=0.2)  # 10 s, 40 s, 2.7 min, ... to 6 h
