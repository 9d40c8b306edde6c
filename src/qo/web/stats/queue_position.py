"""Where a new task stands in the line: answered from the last sample and what was submitted here since."""

from bisect import bisect_right, insort

from qo.model import LevelWord, level_word
from qo.web.stats.sampler import Sample, Sampler
from qo.web.v1.words import LEVEL_WORDS

_FRESH = 1.0  # seconds


class QueuePosition:
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sample: Sample | None = None
        self._ranks: list[float] = []
        self._depth: dict[LevelWord, int] = {}

    async def refresh(self) -> None:
        """Before a task is added: else the sample may hold it already."""
        sample = await self._sampler.fresh(_FRESH)
        if sample is not self._sample:
            self._sample = sample
            self._ranks = list(sample.waiting.ranks)
            self._depth = dict(sample.waiting.depth)

    def join(self, rank: float, priority: int, *, new: bool = True) -> int:
        """The place of a task with this rank, 1 for the next to be claimed. Exact while the queue is short."""
        level = level_word(priority)
        if self._sample is None or self._sample.waiting.exact:
            place = bisect_right(self._ranks, rank) + 1
        else:
            place = 1 + sum(self._depth[each] for each in LEVEL_WORDS[: LEVEL_WORDS.index(level) + 1])
        if new:
            insort(self._ranks, rank)
            self._depth[level] = self._depth.get(level, 0) + 1
        return place
