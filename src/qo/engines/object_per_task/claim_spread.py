"""Whom to reach for first. A worker alone takes the first in order; those who get in each other's way spread out."""

from math import ceil

from qo.engines.object_per_task.keys import Entry
from qo.ids import luck

_WIDEST = 256.0
_CROWD = 8.0
_SHARE = 64  # of the candidates, at most one in so many is reached for at once by one of a crowd
_CALMER = 0.97  # with every claim that met nobody


class ClaimSpread:
    def __init__(self) -> None:
        self._width = 1.0  # how many times more candidates than wanted are looked at

    @property
    def is_crowded(self) -> bool:
        return self._width > _CROWD

    def at_once(self, candidates: int) -> int:
        """How many to reach for: in a crowd only a part of what is left, or all would reach for the same."""
        return max(1, candidates // _SHARE) if self.is_crowded else candidates

    def arrange(self, candidates: list[Entry], limit: int) -> list[Entry]:
        if self._width <= 1.0:
            return candidates
        window = ceil(limit * self._width)
        return shuffled(candidates[:window]) + candidates[window:]

    def learn(self, *, won: int, lost: int) -> None:
        if lost > won:
            self._width = _WIDEST  # a crowd: those who join it step by step would be in its way at every step
        elif lost:
            self._width = min(_WIDEST, 2 * self._width)
        elif won:
            self._width = max(1.0, self._width * _CALMER)


def shuffled(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda _: luck())
