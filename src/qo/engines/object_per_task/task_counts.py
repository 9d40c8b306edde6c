"""Counts. Live tasks are counted off the index, finished ones by reading each once; then own changes are added.

What others do shows at the next count of the store, which is made as often as it is cheap.
"""

import asyncio
from collections import Counter

import msgspec
from msgspec import Struct

from qo.bucket import ANY
from qo.checksum import check_seal, sealed
from qo.clock import boot_clock
from qo.engines.object_per_task.keys import ENTRY_PREFIXES, Entry, KeyKind
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.listing import TaskListing
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry
from qo.model import FINISHED, UNREADABLE, CountKey, Counts, Status, Task

ROLLUP = "stats/finished.json"
_REST = 100.0  # times as long as a count took, it is good for
_LONGEST_REST = 60.0  # seconds, for live tasks
_COSTLY = 500  # tasks read: a count of that many is shared with other processes
_SHARED_FOR = 900.0  # seconds
_MOST_KNOWN = 500_000


class FinishedRollup(Struct, frozen=True, kw_only=True):
    """Finished tasks as some process counted them."""

    counted_at: float
    lanes: list[tuple[str, str, Status, int, int]]  # the last is how many


class TaskCounts:
    def __init__(self, store: TasksLayout, finding: TaskListing) -> None:
        self._bucket, self._documents, self._finding = store.bucket, store.documents, finding
        self._index, self._lanes, self._clock = store.index, store.lanes, store.clock
        self._live, self._finished = Counter[CountKey](), Counter[CountKey]()
        self._live_until = self._finished_until = float("-inf")
        self._known: dict[str, CountKey] = {}  # finished tasks, so that each is read once
        self._ids_alive: set[str] = set()
        self._turn = asyncio.Lock()

    def moved(self, before: Task | None, after: Task | None) -> None:
        """This process wrote a task."""
        for task, step in ((before, -1), (after, 1)):
            if task is not None:
                (self._finished if task.status in FINISHED else self._live)[_lane(task)] += step
        if before is not None:
            self._known.pop(before.id, None)
        if after is not None and after.status in FINISHED:
            self.know(after)

    def know(self, task: Task) -> None:
        if len(self._known) < _MOST_KNOWN:
            self._known[task.id] = _lane(task)

    def is_known_finished(self, task_id: str) -> bool:
        return task_id in self._known

    async def count(self) -> Counts:
        async with self._turn:  # those who ask at the same time share one count
            await self._refresh()
        return {lane: number for lane, number in (self._live + self._finished).items() if number > 0}

    async def _refresh(self) -> None:
        began = boot_clock()
        again = began >= self._finished_until
        if again or began >= self._live_until:
            await self._count_live()
            self._live_until = boot_clock() + min(_LONGEST_REST, _REST * (boot_clock() - began))
        if again:  # right behind the live ones, which it leaves out
            await self._count_finished()
            self._finished_until = boot_clock() + _REST * (boot_clock() - began)

    async def _count_live(self) -> None:
        newest: dict[str, Entry] = {}
        for prefix in ENTRY_PREFIXES:
            for entry in (await self._index.read(prefix)).entries:
                if entry.id not in newest or newest[entry.id].age < entry.age:
                    newest[entry.id] = entry
        await self._lanes.learn(newest.values())
        self._ids_alive = set(newest)
        self._live = Counter(lane for entry in newest.values() if (lane := self._lane(entry)))

    def _lane(self, entry: Entry) -> CountKey | None:
        names = self._lanes.names(entry)
        status = Status.RUNNING if entry.kind is KeyKind.LEASE else Status.PENDING
        return None if names is None else CountKey(names.queue, names.type, status, entry.priority)

    async def _count_finished(self) -> None:
        """Where there is much to read one process reads it, and tells the others."""
        ids = [task_id for task_id in await self._finding.ids() if task_id not in self._ids_alive]
        unknown = [task_id for task_id in ids if task_id not in self._known]
        if len(unknown) >= _COSTLY and await self._take_over():
            return
        await in_parallel(self._look, unknown)
        self._finished = Counter(self._known[task_id] for task_id in ids if task_id in self._known)
        if len(unknown) >= _COSTLY:
            await self._share()

    async def _look(self, task_id: str) -> None:
        kept = await self._documents.read_living(task_id)
        if kept is not None and kept.task.status in FINISHED:
            self.know(kept.task)

    async def _take_over(self) -> bool:
        """Use what another process counted, rather than read everything once more."""
        blob = await retry(lambda: self._bucket.get(ROLLUP))
        try:
            rollup = None if blob is None else _decode(blob.data)
        except UNREADABLE:
            return False
        if rollup is None or self._clock() - rollup.counted_at > _SHARED_FOR:
            return False
        self._finished = Counter({CountKey(*row[:-1]): row[-1] for row in rollup.lanes})
        return True

    async def _share(self) -> None:
        lanes = [(*lane, number) for lane, number in self._finished.items()]
        data = sealed(msgspec.json.encode(FinishedRollup(counted_at=self._clock(), lanes=lanes)))
        await retry(lambda: self._bucket.put(ROLLUP, data, expected=ANY))


def _decode(data: bytes) -> FinishedRollup:
    check_seal(data)
    return msgspec.json.decode(data, type=FinishedRollup)


def _lane(task: Task) -> CountKey:
    return CountKey(task.queue, task.type, task.status, task.priority)
