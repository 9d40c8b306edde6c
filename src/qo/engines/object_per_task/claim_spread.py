"""Chooses which candidates a claim tries first. Without contention in order; contending workers spread out."""

from math import ceil

from qo.engines.object_per_task.keys import Entry
from qo.ids import luck

_MAX_WIDTH = 256.0
_CONTENTION_WIDTH = 8.0
_CONTENDED_SHARE = 64  # under contention a worker tries at most one in 64 of the candidates at a time
_WIDTH_DECAY = 0.97  # per claim without a conflict


class ClaimSpread:
    def __init__(self) -> None:
        self._width = 1.0  # candidates to choose from, as a multiple of the requested number

    @property
    def is_contended(self) -> bool:
        return self._width > _CONTENTION_WIDTH

    def batch_size(self, candidates: int) -> int:
        """How many candidates to try at once. Under contention only a share, so that workers try different ones."""
        return max(1, candidates // _CONTENDED_SHARE) if self.is_contended else candidates

    def arrange(self, candidates: list[Entry], limit: int) -> list[Entry]:
        if self._width <= 1.0:
            return candidates
        window = ceil(limit * self._width)
        return shuffled(candidates[:window]) + candidates[window:]

    def learn(self, *, won: int, lost: int) -> None:
        if lost > won:
            self._width = _MAX_WIDTH  # growing step by step would cause conflicts at every step
        elif lost:
            self._width = min(_MAX_WIDTH, 2 * self._width)
        elif won:
            self._width = max(1.0, self._width * _WIDTH_DECAY)


def shuffled(entries: list[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda _: luck())
