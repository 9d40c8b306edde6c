"""Counts. Unfinished tasks are counted from the index, finished tasks and batches by reading tasks."""

import asyncio
from collections import Counter

import msgspec
from msgspec import Struct

from qo.bucket import ANY
from qo.clock import boot_clock
from qo.damage import check_seal, sealed
from qo.engines.object_per_task.finder import TaskFinder
from qo.engines.object_per_task.keys import ENTRY_PREFIXES, Entry, KeyKind
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.requests import in_parallel, retry
from qo.errors import StorageError
from qo.model import FINISHED, UNREADABLE, CountKey, Counts, Status, Task, count_key

ROLLUP = "stats/finished.json"
_RECOUNT_FACTOR = 100.0  # a count is valid for 100 times as long as it took
_MAX_LIVE_AGE = 60.0  # of the count of unfinished tasks
_SHARED_COUNT_SIZE = 500  # counts that read at least this many tasks are shared with other processes
_MAX_SHARED_AGE = 900.0
_MAX_KNOWN_TASKS = 500_000


class FinishedRollup(Struct, frozen=True, kw_only=True):
    """The finished tasks as counted by one process."""

    counted_at: float
    lanes: list[tuple[str, str, Status, int, int]]  # queue, type, status, priority, count


class TaskCounts:
    """Counts. Unfinished tasks are counted from the index, finished ones by reading each once.

    Changes by this process are applied immediately. Changes by others show at the next recount, whose interval grows
    with its cost.
    """

    def __init__(self, store: TasksLayout, listing: TaskFinder) -> None:
        self._bucket, self._documents, self._listing = store.bucket, store.documents, listing
        self._index, self._lanes, self._clock = store.index, store.lanes, store.clock
        self._live, self._finished = Counter[CountKey](), Counter[CountKey]()
        self._live_until = self._finished_until = float("-inf")
        self._known: dict[str, CountKey] = {}  # finished tasks, so that each is read only once
        self._ids_alive: set[str] = set()
        self._lock = asyncio.Lock()

    def record_move(self, before: Task | None, after: Task | None) -> None:
        """Apply a change that this process has written."""
        for task, step in ((before, -1), (after, 1)):
            if task is not None:
                (self._finished if task.status in FINISHED else self._live)[count_key(task)] += step
        if before is not None:
            self._known.pop(before.id, None)
        if after is not None and after.status in FINISHED:
            self.know(after)

    def know(self, task: Task) -> None:
        if len(self._known) < _MAX_KNOWN_TASKS:
            self._known[task.id] = count_key(task)

    def is_known_finished(self, task_id: str) -> bool:
        return task_id in self._known

    async def count(self) -> Counts:
        async with self._lock:  # concurrent callers share one count
            await self._refresh()
        return {lane: number for lane, number in (self._live + self._finished).items() if number > 0}

    async def _refresh(self) -> None:
        began = boot_clock()
        must_recount = began >= self._finished_until
        if must_recount or began >= self._live_until:
            await self._count_live()
            self._live_until = boot_clock() + min(_MAX_LIVE_AGE, _RECOUNT_FACTOR * (boot_clock() - began))
        if must_recount:  # right after the live ones, whose ids it skips
            await self._count_finished()
            self._finished_until = boot_clock() + _RECOUNT_FACTOR * (boot_clock() - began)

    async def _count_live(self) -> None:
        newest: dict[str, Entry] = {}
        for prefix in ENTRY_PREFIXES:
            for entry in (await self._index.read(prefix)).entries:
                if entry.id not in newest or newest[entry.id].age < entry.age:
                    newest[entry.id] = entry
        await self._lanes.load(newest.values())
        self._ids_alive = set(newest)
        self._live = Counter(lane for entry in newest.values() if (lane := self._lane(entry)))

    def _lane(self, entry: Entry) -> CountKey | None:
        names = self._lanes.names(entry)
        status = Status.RUNNING if entry.kind is KeyKind.LEASE else Status.PENDING
        return None if names is None else CountKey(names.queue, names.type, status, entry.priority)

    async def _count_finished(self) -> None:
        """If there are many tasks to read, one process reads them and shares the result."""
        ids = [task_id for task_id in await self._listing.ids() if task_id not in self._ids_alive]
        unknown = [task_id for task_id in ids if task_id not in self._known]
        if len(unknown) >= _SHARED_COUNT_SIZE and await self._load_shared():
            return
        await in_parallel(self._read_finished, unknown)
        self._finished = Counter(self._known[task_id] for task_id in ids if task_id in self._known)
        if len(unknown) >= _SHARED_COUNT_SIZE:
            await self._share()

    async def _read_finished(self, task_id: str) -> None:
        stored = await self._documents.read_live(task_id)
        if stored is not None and stored.task.status in FINISHED:
            self.know(stored.task)

    async def _load_shared(self) -> bool:
        """Use the count of another process, if it is recent enough."""
        blob = await retry(lambda: self._bucket.get(ROLLUP))
        try:
            rollup = None if blob is None else _decode(blob.data)
        except UNREADABLE:
            return False
        if rollup is None or self._clock() - rollup.counted_at > _MAX_SHARED_AGE:
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


class _SharedScan:
    """One pass over all tasks, for the batches that callers named before it began."""

    def __init__(self) -> None:
        self.batches: set[str] = set()
        self.counts: dict[str, Counter[CountKey]] | None = None
        self.error: StorageError | None = None


class BatchCounts:
    """Counts of batches. The index of this layout has no batches, so a count reads every task, and callers share it.

    One scan runs at a time. A call that comes during a scan joins the next one, so its count is never too old.
    """

    def __init__(self, listing: TaskFinder) -> None:
        self._listing = listing
        self._lock = asyncio.Lock()
        self._next = _SharedScan()

    async def count(self, batch: str) -> Counts:
        scan = self._next
        scan.batches.add(batch)
        async with self._lock:
            if scan.counts is None:
                scan.counts = await self._run(scan)
        if scan.error is not None:
            raise scan.error
        return dict(scan.counts[batch])

    async def _run(self, scan: _SharedScan) -> dict[str, Counter[CountKey]]:
        """If the caller is cancelled, the next caller of the scan starts it again."""
        await asyncio.sleep(0)  # calls that were made together with this one join
        if self._next is scan:
            self._next = _SharedScan()
        counts: dict[str, Counter[CountKey]] = {batch: Counter() for batch in scan.batches}
        try:
            async for tasks in self._listing.scan():
                for task in tasks:
                    if task.batch in counts:
                        counts[task.batch][count_key(task)] += 1
        except StorageError as error:
            scan.error = error
        return counts
