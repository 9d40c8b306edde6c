"""Exponential back-off: the pauses between repeated attempts."""

from collections.abc import Callable

from qo.ids import random_fraction


class Backoff:
    """Pauses in seconds, each `factor` times as long as the one before, from `first` up to `longest`.

    Each pause is multiplied by a random number from the range `jitter`, so that processes that begin to wait at the
    same moment do not all try again at the same moment.
    """

    def __init__(
        self,
        first: float,
        longest: float,
        *,
        factor: float = 2.0,
        jitter: tuple[float, float] = (1.0, 1.0),
        random: Callable[[], float] = random_fraction,
    ) -> None:
        self.longest = longest
        self._first, self._factor, self._jitter, self._random = first, factor, jitter, random
        self.upcoming = first  # the next pause, before jitter

    def reset(self) -> None:
        """An attempt succeeded: begin with the first pause again."""
        self.upcoming = self._first

    def next(self) -> float:
        """How long to pause now; the pause after it is longer."""
        pause, (low, high) = self.upcoming, self._jitter
        self.upcoming = min(self._factor * pause, self.longest)
        return pause if low == high == 1.0 else pause * (low + (high - low) * self._random())
