"""Candidates of claims: due tasks in order, from the index or by reading the tasks themselves.

One request lists a small queue completely. A deep one is read shard by shard, as far as needed, and the result serves
the claims of the next second. Entries that this process writes are added immediately.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from functools import partial
from heapq import heappop, heappush
from typing import TypeAlias

from qo.clock import boot_clock
from qo.engines.object_per_task.finder import TaskFinder
from qo.engines.object_per_task.index import Index, LaneDirectory
from qo.engines.object_per_task.keys import LATER, READY, SHARDS, Entry, KeyKind, entry_of, index_key, lane_of
from qo.engines.object_per_task.layout import TasksLayout, TasksOptions
from qo.engines.requests import in_parallel
from qo.ids import random_fraction
from qo.model import ClaimAllowance, ClaimRequest, eligibility, eligible, in_order, is_due, without_group_limits

_MAX_PROMOTED = 4096  # the longest waiting; others are found when their rank is reached
_MAX_UNSORTED = 256  # entries that every claim merges into the sorted ones


class ListedEntries:
    """The entries that match one kind of claim request.

    A deep queue lists some thousand entries. They are sorted once, and claims take from the front. Tasks that are
    promoted during the second that a scan lasts are found by the next scan.
    """

    def __init__(self, index: Index, lanes: LaneDirectory) -> None:
        self._index, self._lanes = index, lanes
        self._entries: dict[str, Entry] = {}
        self._by_shard: dict[str, deque[Entry]] = {}  # in index order
        self._in_order: deque[Entry] = deque()
        self._unsorted: list[Entry] = []
        self._later: list[tuple[float, str]] = []  # entries that are not due yet

    def __bool__(self) -> bool:
        return bool(self._entries)

    def put(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.key not in self._entries:
                self._entries[entry.key] = entry
                if entry.at:
                    heappush(self._later, (entry.at, entry.key))
                else:
                    self._unsorted.append(entry)

    def put_listed(self, shard: str, entries: Iterable[Entry]) -> None:
        """Add the next entries of a shard, in index order."""
        listed = list(entries)
        self._by_shard.setdefault(shard, deque()).extend(listed)
        self.put(listed)

    def count_usable(self) -> int:
        return sum(map(self._index.is_usable, self._entries))

    def has_usable(self) -> bool:
        return any(map(self._index.is_usable, self._entries))

    def has_shown(self, shard: str, request: ClaimRequest) -> bool:
        """Whether the shard's listed entries are enough for the largest result of this claim."""
        listed = self._by_shard.get(shard, deque())
        while listed and self._index.is_removed(listed[0].key):
            listed.popleft()
        return sum(1 for _ in self._within_limits(listed, request, request.limit)) >= request.limit

    def all_due(self, now: float) -> list[Entry]:
        due = (entry for entry in self._entries.values() if entry.at <= now)
        return in_order((entry for entry in due if self._index.is_usable(entry.key)), now, lane_of)

    def first_due(self, request: ClaimRequest, now: float, number: int) -> list[Entry]:
        """The first `number` due entries, of types with a limit at most that many."""
        while self._later and self._later[0][0] <= now:
            self._unsorted.append(self._entries[heappop(self._later)[1]])
        if len(self._unsorted) > _MAX_UNSORTED:
            self._sort(now)
        while self._in_order and self._index.is_removed(self._in_order[0].key):
            self._entries.pop(self._in_order.popleft().key, None)
        first = list(self._within_limits(self._in_order, request, number))
        if not self._unsorted:
            return first
        merged = in_order([*first, *self._unsorted], now, lane_of)
        return list(self._within_limits(merged, request, number))

    def _sort(self, now: float) -> None:
        current = [entry for entry in (*self._in_order, *self._unsorted) if not self._index.is_removed(entry.key)]
        self._in_order, self._unsorted = deque(in_order(current, now, lane_of)), []

    def _within_limits(self, entries: Iterable[Entry], request: ClaimRequest, number: int) -> Iterator[Entry]:
        """The first `number` entries that a claim can take."""
        allowance = ClaimAllowance(request)
        for entry in entries:
            if number <= 0:
                return
            names = self._lanes.names(entry)
            if names is None or not self._index.is_usable(entry.key):
                continue
            if allowance.take(names.type, names.needs):
                number -= 1
                yield entry


class PromotedEntries:
    """Entries of tasks that have waited so long that they overtake the first entries of the index.

    The index is sorted by rank. A promoted task is ordered by the time since which it waits, so in a deep queue it may
    be far behind the entries that a claim reads. Tasks are promoted in the order of their ranks, so each read continues
    where the last one ended, up to the current time.
    """

    def __init__(self, index: Index, *, interval: float, max_read: int) -> None:
        self._index, self._interval, self._max_read = index, interval, max_read
        self._cursors = dict.fromkeys(SHARDS, "")
        self._entries: dict[str, Entry] = {}
        self._next_read_at = float("-inf")  # by the store's clock

    async def entries(self, now: float) -> list[Entry]:
        """The promoted entries of all lanes. Tasks promoted since the last read may be missing."""
        if now >= self._next_read_at:
            self._next_read_at = now + self._interval
            await in_parallel(lambda shard: self._read_on(shard, now), SHARDS)
        self._forget()
        return list(self._entries.values())

    async def _read_on(self, shard: str, now: float) -> None:
        page = await self._index.read(
            f"{READY}{shard}/", after=self._cursors[shard], limit=self._max_read, until=lambda entry: entry.rank > now
        )
        self._cursors[shard] = page.last or self._cursors[shard]
        for entry in page.entries:
            if entry.kind is KeyKind.READY and entry.due_at < entry.rank:
                self._entries[entry.key] = entry

    def _forget(self) -> None:
        """Drop claimed entries, and the ones that have waited least if there are too many."""
        waiting = [entry for entry in self._entries.values() if self._index.is_usable(entry.key)]
        waiting.sort(key=lambda entry: entry.due_at)
        self._entries = {entry.key: entry for entry in waiting[:_MAX_PROMOTED]}


_SCAN_LIFETIME = 1.0
_MAX_READ_ENTRIES = 8000  # of each shard per claim; the next claim continues from there
_CONTENDED_SHARDS = 2  # under contention list only 2 shards,
_ENOUGH_FACTOR = 16  # if they hold at least 16 times the requested tasks
_MAX_LATER_PAGES = 16
_MAX_SCANS = 8

ScanKey: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str], bool]  # the kind of a request


class ShardScan:
    """One pass through the shards for one kind of claim request."""

    def __init__(self, now: float, shards: str, entries: ListedEntries) -> None:
        self.began, self.began_on_loop = now, asyncio.get_running_loop().time()
        self.is_new = True
        self.entries = entries
        self.cursors: dict[str, str] = dict.fromkeys(shards, "")  # without shards that are read completely
        self.lock = asyncio.Lock()  # claims of this process share the scan
        first = int(random_fraction() * len(shards))
        self.order = shards[first:] + shards[:first]  # differs by scan and worker, to spread the load

    def is_fresh(self, now: float) -> bool:
        return (
            now - self.began < _SCAN_LIFETIME
            and asyncio.get_running_loop().time() - self.began_on_loop < _SCAN_LIFETIME
        )


class ReadyCandidates:
    """Candidates from the index, and the time at which the next task becomes due."""

    def __init__(self, store: TasksLayout, options: TasksOptions) -> None:
        self._index, self._lanes, self._clock = store.index, store.lanes, store.clock
        self._page_size, self._shards = options.ready_page_size, "".join(options.shards) or SHARDS
        self._promoted = PromotedEntries(store.index, interval=options.promotion_interval, max_read=_MAX_READ_ENTRIES)
        self._scans: OrderedDict[ScanKey, ShardScan] = OrderedDict()
        self.next_at: float | None = None  # when the next task becomes due, as far as known
        store.index.on_write = self._add_written

    async def candidates(
        self, request: ClaimRequest, *, number: int | None = None, approximate: bool = False
    ) -> list[Entry]:
        """Entries of due tasks that the request may claim, in order. `approximate`: reads fewer shards.

        In a deep queue at most `number` entries are returned.
        """
        now = self._clock()
        key = (request.queues, request.types, request.capabilities, request.takes_groups)
        scan = self._current_scan(key, now)
        if scan is None:
            if not self._is_deep(key):
                page = await self._index.read(READY, limit=self._page_size, until=lambda entry: entry.at > now)
                if not page.is_full:
                    self._scans.clear()
                    self.next_at = page.stopped_at.at if page.stopped_at else None
                    return in_order(await self._matching(page.entries, request), now, lane_of)
            scan = self._begin(key, now)
        async with scan.lock:
            reading = [partial(self._fill, scan, request, approximate=approximate)]
            if scan.is_new:
                reading.append(partial(self._read_later, scan, request, now))
                reading.append(partial(self._read_promoted, scan, request, now))
            await in_parallel(lambda read: read(), reading)
            scan.is_new = False
        return scan.entries.all_due(now) if number is None else scan.entries.first_due(request, now, number)

    async def _matching(self, entries: list[Entry], request: ClaimRequest) -> list[Entry]:
        await self._lanes.load(entries)
        may_take = eligibility(without_group_limits(request))  # later claims with other limits use the same scan
        return [
            entry
            for entry in entries
            if entry.id[0] in self._shards
            and (names := self._lanes.names(entry)) is not None
            and may_take(names.queue, names.type, names.needs)
        ]

    # --- deep queues

    async def _fill(self, scan: ShardScan, request: ClaimRequest, *, approximate: bool) -> None:
        for _ in range(max(1, _MAX_READ_ENTRIES // self._page_size)):
            shards = self._shards_to_read(scan, request)
            if approximate:
                has_enough = scan.entries.count_usable() >= _ENOUGH_FACTOR * request.limit
                shards = [] if has_enough else shards[:_CONTENDED_SHARDS]
            if not shards:
                return
            await in_parallel(lambda shard: self._advance(scan, shard, request), shards)

    def _current_scan(self, key: ScanKey, now: float) -> ShardScan | None:
        """The scan to use.

        One that has found nothing yet continues, regardless of its age, so that it makes progress.
        """
        scan = self._scans.get(key)
        if scan is None:
            return None
        searching = bool(scan.cursors) and not scan.entries
        return scan if searching or (scan.is_fresh(now) and scan.entries.has_usable()) else None

    def _begin(self, key: ScanKey, now: float) -> ShardScan:
        self._scans[key] = scan = ShardScan(now, self._shards, ListedEntries(self._index, self._lanes))
        self._scans.move_to_end(key)
        if len(self._scans) > _MAX_SCANS:
            self._scans.popitem(last=False)
        return scan

    def _is_deep(self, key: ScanKey) -> bool:
        """Whether the last scan suggests that one page cannot hold the whole queue."""
        scan = self._scans.get(key)
        if scan is None:
            return False
        seen = len(self._shards) - sum(not cursor for cursor in scan.cursors.values())
        return scan.entries.count_usable() * len(self._shards) > 2 * self._page_size * seen

    def _shards_to_read(self, scan: ShardScan, request: ClaimRequest) -> list[str]:
        """Shards with unread entries whose listed ones cannot satisfy the request on their own."""
        return [shard for shard in scan.order if shard in scan.cursors and not scan.entries.has_shown(shard, request)]

    async def _advance(self, scan: ShardScan, shard: str, request: ClaimRequest) -> None:
        page = await self._index.read(f"{READY}{shard}/", after=scan.cursors[shard], limit=self._page_size)
        scan.entries.put_listed(shard, await self._matching(page.entries, request))
        if page.is_full:
            scan.cursors[shard] = page.last
        else:
            scan.cursors.pop(shard, None)

    async def _read_later(self, scan: ShardScan, request: ClaimRequest, now: float) -> None:
        """Read tasks that become due during the scan. If there are too many, the earliest are read first."""
        soon, after = now + _SCAN_LIFETIME, ""
        for _ in range(_MAX_LATER_PAGES):
            page = await self._index.read(
                LATER, after=after, limit=self._page_size, until=lambda entry: entry.at > soon
            )
            self.next_at = page.stopped_at.at if page.stopped_at else None
            scan.entries.put(await self._matching(page.entries, request))
            if not page.is_full:
                break
            after = page.last

    async def _read_promoted(self, scan: ShardScan, request: ClaimRequest, now: float) -> None:
        scan.entries.put(await self._matching(await self._promoted.entries(now), request))

    def _add_written(self, entry: Entry) -> None:
        """Add an entry that this process has written to the current scans."""
        for (queues, types, capabilities, takes_groups), scan in self._scans.items():
            names = self._lanes.names(entry)
            request = ClaimRequest(
                worker_id="",
                lease_id="",
                queues=queues,
                types=types,
                capabilities=capabilities,
                takes_groups=takes_groups,
            )
            is_claimable = entry.kind is not KeyKind.LEASE and entry.id[0] in self._shards
            if is_claimable and names and eligible(request, names.queue, names.type, names.needs):
                scan.entries.put((entry,))


class FullScan:
    """Candidates without the index: reads the tasks themselves, all of them or one page at a time."""

    def __init__(self, store: TasksLayout, listing: TaskFinder, options: TasksOptions) -> None:
        self._documents, self._lanes, self._listing, self._clock = store.documents, store.lanes, listing, store.clock
        self._page_size, self._interval = options.log_scan_page_size, options.scan_interval
        self._next_at = boot_clock() + self._interval
        self._shards = options.shards
        self._cursor = ""

    async def all(self, request: ClaimRequest) -> list[Entry]:
        found: list[Entry] = []
        ids = await self._listing.ids(self._shards)
        for start in range(0, len(ids), self._page_size):
            found += await self._due(ids[start : start + self._page_size], request)
        return in_order(found, self._clock(), lane_of)

    async def occasional(self, request: ClaimRequest) -> list[Entry]:
        """The due tasks of the next page, once per `scan_interval`. This finds tasks that the index lacks."""
        if boot_clock() < self._next_at:
            return []
        self._next_at = boot_clock() + self._interval
        ids = await self._listing.ids(self._shards)
        page = [task_id for task_id in ids if task_id > self._cursor][: self._page_size]
        self._cursor = page[-1] if len(page) == self._page_size else ""
        found = await self._due(page, request)
        return in_order(found, self._clock(), lane_of)

    async def _due(self, ids: list[str], request: ClaimRequest) -> list[Entry]:
        found, is_eligible = list[Entry](), eligibility(request)
        for stored in await in_parallel(self._documents.read_live, ids):
            if stored is None or not is_due(stored.task, self._clock()):
                continue
            task, key = stored.task, index_key(stored.task)
            if key is not None and is_eligible(task.queue, task.type, task.stored_needs):
                self._lanes.content(task)
                found += filter(None, [entry_of(key)])
        return found
