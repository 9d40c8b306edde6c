"""Pauses between two looks at a store that cannot call: ever longer while nothing comes."""

_FIRST, _LONGEST = 0.1, 5.0  # seconds
_QUIET, _QUIETEST = 60.0, 10.0  # seconds without news after which every look is a bill for nothing, and the pause then


class Pauses:
    def __init__(self) -> None:
        self._fruitless = 0.0  # seconds paused since there was something
        self.next = _FIRST

    def start_over(self) -> None:
        self._fruitless, self.next = 0.0, _FIRST

    def lengthen(self) -> None:
        """A look found nothing."""
        self._fruitless += self.next
        self.next = min(2 * self.next, _QUIETEST if self._fruitless >= _QUIET else _LONGEST)
