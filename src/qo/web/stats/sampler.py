"""Samples of the store: counts, the oldest pending task of each level, the position of a new task, unhandled types, and
kinds of pending tasks.

Requests are answered from the latest sample. The engine counts the tasks. The ages come from reading: a queue shorter
than a page is read completely. For a longer one, each sample reads the newest page and one further page of a walk over
the whole queue. The oldest task seen that is still pending gives a lower bound of the longest wait, which becomes exact
when the walk reaches the end.
"""

import asyncio
import contextlib
import logging
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.handled_types import Lanes, find_unhandled, is_unhandled
from qo.model import Counts, Filter, LevelWord, PendingKind, Status, Task, cursor, effective_rank, level_word
from qo.pending_counts import PendingCounts, count_pending
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.stats.wait_times import OldestTasks
from qo.web.task_words import LEVEL_WORDS

log = logging.getLogger("qo.web")
PAGE_SIZE = 200
_TRACKED_TASKS = 3  # the oldest pending tasks of each level, read again with each sample
_MAX_VIEWS = 64  # distinct limits whose samples are kept
_KINDS_AGE_FACTOR = 20.0  # a count is reused for this many times its duration
_KINDS_MAX_AGE = 60.0  # seconds


class ReadyCounts(Struct, frozen=True, kw_only=True):
    exact: bool  # all pending tasks were read
    depth: dict[LevelWord, int]
    oldest: dict[LevelWord, float | None]  # when the task that has waited longest became due
    ranks: list[float]  # effective ranks of all pending tasks, sorted; empty unless exact


class Sample(Struct, frozen=True, kw_only=True):
    at: float  # by the boot clock
    counts: Counts
    waiting: ReadyCounts

    def total(self, status: Status) -> int:
        return sum(number for lane, number in self.counts.items() if lane.status is status)


class Sampler:
    def __init__(self, engine: Engine, *, interval: float, clock: Clock, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine, self._interval, self._clock, self._limits = engine, interval, clock, limits
        self._survey = ReadySurvey(engine, limits)
        self._current: asyncio.Task[Sample] | None = None
        self.latest: Sample | None = None
        self.cost = 0.0  # seconds that the last sample took

    async def run(self) -> None:
        while True:
            try:
                await self.sample(max_age=self._interval / 2)
            except StorageError as error:
                log.warning("the store is unreachable: %s", error)
            await asyncio.sleep(self._interval)

    async def sample(self, *, max_age: float) -> Sample:
        """A sample at most `max_age` seconds old. Concurrent callers share one read of the store."""
        if self.latest is not None and boot_clock() - self.latest.at <= max_age:
            return self.latest
        if self._current is None or self._current.done():
            self._current = asyncio.create_task(self._take())
        return await asyncio.shield(self._current)

    async def finish(self) -> None:
        """Wait for a sample that is being taken."""
        if self._current is not None:
            with contextlib.suppress(Exception):  # its callers have received the error
                await self._current

    async def _take(self) -> Sample:
        began = boot_clock()
        counts = self._limits.count(await self._engine.count())
        sample = Sample(at=boot_clock(), counts=counts, waiting=await self._survey.read(counts, self._clock()))
        self.latest, self.cost = sample, boot_clock() - began
        return sample


class ReadySurvey:
    """Depths and oldest tasks by level. Keeps the position of its walk and the oldest tasks between reads."""

    def __init__(self, engine: Engine, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine = engine
        self._pending = Filter(
            statuses=(Status.PENDING,), queues=tuple(sorted(limits.queues)), types=tuple(sorted(limits.types))
        )
        self._position = ""  # of the walk
        self._oldest: dict[LevelWord, dict[str, float]] = {level: {} for level in LEVEL_WORDS}  # due time by task id

    async def read(self, counts: Counts, now: float) -> ReadyCounts:
        newest = await self._engine.find_without_values(self._pending, limit=PAGE_SIZE)
        if len(newest) < PAGE_SIZE:
            self._position = ""
            return _exact(newest, now)
        walked = await self._engine.find_without_values(
            self._pending, limit=PAGE_SIZE, after=self._position or cursor(newest[-1])
        )
        self._position = cursor(walked[-1]) if len(walked) == PAGE_SIZE else ""
        await self._forget_claimed()
        self._track([*newest, *walked], now)
        return ReadyCounts(
            exact=False,
            depth=depths(counts),
            oldest={level: min(known.values(), default=None) for level, known in self._oldest.items()},
            ranks=[],
        )

    def _track(self, tasks: list[Task], now: float) -> None:
        for task in tasks:
            if task.available_at <= now:
                self._oldest[level_word(task.priority)][task.id] = task.due_at
        for level, known in self._oldest.items():
            self._oldest[level] = dict(sorted(known.items(), key=lambda item: item[1])[:_TRACKED_TASKS])

    async def _forget_claimed(self) -> None:
        ids = [task_id for known in self._oldest.values() for task_id in known]
        for task_id, task in zip(ids, await self._engine.get_without_values(ids), strict=True):
            if task is None or task.status is not Status.PENDING:
                for known in self._oldest.values():
                    known.pop(task_id, None)


def depths(counts: Counts) -> dict[LevelWord, int]:
    depth: dict[LevelWord, int] = dict.fromkeys(LEVEL_WORDS, 0)
    for lane, number in counts.items():
        if lane.status is Status.PENDING:
            depth[level_word(lane.priority)] += number
    return depth


def _exact(tasks: list[Task], now: float) -> ReadyCounts:
    depth: dict[LevelWord, int] = dict.fromkeys(LEVEL_WORDS, 0)
    oldest: dict[LevelWord, float | None] = dict.fromkeys(LEVEL_WORDS)
    for task in tasks:
        level = level_word(task.priority)
        depth[level] += 1
        known = oldest[level]
        if task.available_at <= now and (known is None or task.due_at < known):
            oldest[level] = task.due_at
    ranks = sorted(effective_rank(task.rank, task.due_at, now) for task in tasks)
    return ReadyCounts(exact=True, depth=depth, oldest=oldest, ranks=ranks)


class StoreView(Struct, frozen=True, kw_only=True):
    sampler: Sampler
    oldest: OldestTasks


class StoreViews:
    """One `StoreView` for the whole store and one for each set of limits. Callers with equal limits share it."""

    def __init__(self, engine: Engine, *, interval: float, clock: Clock) -> None:
        self._engine, self._interval, self._clock = engine, interval, clock
        self.whole = self._new(WHOLE_STORE)
        self._limited: OrderedDict[AccessLimits, StoreView] = OrderedDict()

    def of(self, limits: AccessLimits) -> StoreView:
        if limits.is_whole:
            return self.whole
        view = self._limited.get(limits)
        if view is None:
            view = self._limited[limits] = self._new(limits)
            if len(self._limited) > _MAX_VIEWS:
                self._limited.popitem(last=False)
        self._limited.move_to_end(limits)
        return view

    async def finish(self) -> None:
        for view in (self.whole, *self._limited.values()):
            await view.sampler.finish()

    def _new(self, limits: AccessLimits) -> StoreView:
        return StoreView(
            sampler=Sampler(self._engine, interval=self._interval, clock=self._clock, limits=limits),
            oldest=OldestTasks(self._engine, limits),
        )


_MAX_SAMPLE_AGE = 1.0  # seconds


class QueuePosition:
    """The estimated position of a new task, from the latest sample and the tasks submitted here since then."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sample: Sample | None = None
        self._ranks: list[float] = []
        self._depth: dict[LevelWord, int] = {}

    async def refresh(self) -> None:
        """Call this before the task is added, because a later sample may already contain the task."""
        sample = await self._sampler.sample(max_age=_MAX_SAMPLE_AGE)
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


_MIN_AGE, _MAX_AGE = 1.0, 30.0  # seconds for which a read is reused
_AGE_FACTOR = 200  # a read is reused for this many times its duration


class UnhandledTypes:
    """Pending tasks whose type no connected worker handles, read from the store at most every few seconds."""

    def __init__(self, engine: Engine, clock: Clock, *, dead_after: float) -> None:
        self._engine, self._clock, self._dead_after = engine, clock, dead_after
        self._lanes: Lanes = {}
        self._read_again_at = float("-inf")
        self._reading = asyncio.Lock()

    async def lanes(self) -> Lanes:
        async with self._reading:
            if boot_clock() >= self._read_again_at:
                began = boot_clock()
                self._lanes = await find_unhandled(self._engine, self._clock(), dead_after=self._dead_after)
                took = boot_clock() - began
                self._read_again_at = boot_clock() + min(_MAX_AGE, max(_MIN_AGE, _AGE_FACTOR * took))
        return self._lanes

    async def ids(self, tasks: Iterable[Task]) -> set[str]:
        """The ids of the tasks that are pending and that no worker handles."""
        pending = [task for task in tasks if task.status is Status.PENDING]
        lanes = await self.lanes() if pending else {}
        return {task.id for task in pending if is_unhandled(task, lanes)}

    async def by_type(self, limits: AccessLimits) -> dict[str, int]:
        """How many such tasks there are, by type, inside the limits of a caller."""
        numbers: dict[str, int] = {}
        for (queue, type_), number in (await self.lanes()).items():
            if limits.includes(queue, type_):
                numbers[type_] = numbers.get(type_, 0) + number
        return numbers


class PendingKinds:
    """How many pending tasks are ready, scheduled and retrying, counted at most every few seconds."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock
        self._known = PendingCounts()
        self._known_until = float("-inf")
        self._counting = asyncio.Lock()  # concurrent requests share one count

    async def total(self, counts: Counts, limits: AccessLimits = WHOLE_STORE) -> dict[PendingKind, int]:
        """Numbers inside the limits. `counts` are the counts of the whole store."""
        known = await self._counts(counts)
        inside = {lane: kinds for lane, kinds in known.by_lane.items() if limits.includes(*lane)}
        return PendingCounts(by_lane=inside).total()

    async def _counts(self, counts: Counts) -> PendingCounts:
        async with self._counting:
            began = boot_clock()
            if began >= self._known_until:
                self._known = await count_pending(self._engine, counts, self._clock())
                self._known_until = boot_clock() + min(_KINDS_MAX_AGE, _KINDS_AGE_FACTOR * (boot_clock() - began))
            return self._known
