"""What is waiting, by level of priority, without reading all of it.

How many wait is counted by the engine. How long is seen by looking: a short queue is read whole. Of a long one, each
look reads the newest page and one page further down a walk that goes round and round, and the longest wait is that of
the oldest task seen that still waits: a lower bound that becomes exact as the walk comes to the end.
"""

from msgspec import Struct

from qo.engine import Engine
from qo.model import Counts, Filter, LevelWord, Status, Task, cursor, effective_rank, level_word
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.v1.words import LEVEL_WORDS

PAGE = 200
_WITNESSES = 3  # tasks a level, the oldest, that are asked after at each look


class ReadyCounts(Struct, frozen=True, kw_only=True):
    exact: bool  # all that waits was read
    depth: dict[LevelWord, int]
    oldest: dict[LevelWord, float | None]  # since when the one that waited longest has been due
    ranks: list[float]  # effective, of all that wait, lowest first; empty unless exact


class ReadySurvey:
    def __init__(self, engine: Engine, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine = engine
        self._pending = Filter(
            statuses=(Status.PENDING,), queues=tuple(sorted(limits.queues)), types=tuple(sorted(limits.types))
        )
        self._after = ""
        self._witnesses: dict[LevelWord, dict[str, float]] = {level: {} for level in LEVEL_WORDS}  # since when due

    async def look(self, counts: Counts, now: float) -> ReadyCounts:
        newest = await self._engine.find_without_values(self._pending, limit=PAGE)
        if len(newest) < PAGE:
            self._after = ""
            return _exact(newest, now)
        walked = await self._engine.find_without_values(
            self._pending, limit=PAGE, after=self._after or cursor(newest[-1])
        )
        self._after = cursor(walked[-1]) if len(walked) == PAGE else ""
        await self._forget_the_claimed()
        self._remember([*newest, *walked], now)
        return self._at_length(counts)

    def _remember(self, tasks: list[Task], now: float) -> None:
        for task in tasks:
            if task.available_at <= now:
                self._witnesses[level_word(task.priority)][task.id] = task.due_at
        for level, known in self._witnesses.items():
            self._witnesses[level] = dict(sorted(known.items(), key=lambda item: item[1])[:_WITNESSES])

    async def _forget_the_claimed(self) -> None:
        asked = [task_id for known in self._witnesses.values() for task_id in known]
        for task_id, task in zip(asked, await self._engine.get_without_values(asked), strict=True):
            if task is None or task.status is not Status.PENDING:
                for known in self._witnesses.values():
                    known.pop(task_id, None)

    def _at_length(self, counts: Counts) -> ReadyCounts:
        return ReadyCounts(
            exact=False,
            depth=depths(counts),
            oldest={level: min(known.values(), default=None) for level, known in self._witnesses.items()},
            ranks=[],
        )


def depths(counts: Counts) -> dict[LevelWord, int]:
    depth: dict[LevelWord, int] = dict.fromkeys(LEVEL_WORDS, 0)
    for lane, number in counts.items():
        if lane.status is Status.PENDING:
            depth[level_word(lane.priority)] += number
    return depth


def _exact(tasks: list[Task], now: float) -> ReadyCounts:
    depth: dict[LevelWord, int] = dict.fromkeys(LEVEL_WORDS, 0)
    for task in tasks:
        depth[level_word(task.priority)] += 1
    return ReadyCounts(
        exact=True,
        depth=depth,
        oldest=_oldest(tasks, now),
        ranks=sorted(effective_rank(task.rank, task.due_at, now) for task in tasks),
    )


def _oldest(tasks: list[Task], now: float) -> dict[LevelWord, float | None]:
    """Tasks that are not due yet do not wait."""
    due: dict[LevelWord, float | None] = dict.fromkeys(LEVEL_WORDS)
    for task in tasks:
        level = level_word(task.priority)
        known = due[level]
        if task.available_at <= now and (known is None or task.due_at < known):
            due[level] = task.due_at
    return due
