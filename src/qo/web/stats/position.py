"""The estimated position of a new task in the queue, from the latest sample and the tasks submitted here since then."""

from bisect import bisect_right, insort

from qo.model import LevelWord, level_word
from qo.web.stats.sampler import Sample, Sampler
from qo.web.task_words import LEVEL_WORDS

_MAX_AGE = 1.0  # seconds


class QueuePosition:
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sample: Sample | None = None
        self._ranks: list[float] = []
        self._depth: dict[LevelWord, int] = {}

    async def refresh(self) -> None:
        """Call this before the task is added, because a later sample may already contain the task."""
        sample = await self._sampler.sample(max_age=_MAX_AGE)
        if sample is not self._sample:
            self._sample = sample
            self._ranks = list(sample.waiting.ranks)
            self._depth = dict(sample.waiting.depth)

    def of(self, rank: float, priority: int, *, new: bool = True) -> int:
        """The position of a task with this rank; 1 is claimed next. Exact while the sample is exact."""
        level = level_word(priority)
        if self._sample is None or self._sample.waiting.exact:
            position = bisect_right(self._ranks, rank) + 1
        else:
            position = 1 + sum(self._depth[each] for each in LEVEL_WORDS[: LEVEL_WORDS.index(level) + 1])
        if new:
            insort(self._ranks, rank)
            self._depth[level] = self._depth.get(level, 0) + 1
        return position
