"""Listings, newest first. Unfinished tasks come from the index, finished ones from the tasks."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable

from qo.engines.object_per_task.keys import (
    LATER,
    LEASES,
    READY,
    SHARDS,
    TASKS,
    Entry,
    is_stale,
    task_id_in,
)
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_store import StoredTask
from qo.engines.requests import MAX_CONCURRENT_REQUESTS, in_parallel, retry
from qo.model import (
    UNFINISHED,
    Filter,
    PendingKind,
    Position,
    Status,
    Task,
    cursor,
    page_start,
)

_SCAN_SIZE = 1000  # tasks held in memory at a time
_MAX_LISTINGS, _MAX_POSITIONS = 16, 200_000  # in the cache


class PageCache:
    """The positions of the next pages of recent listings."""

    def __init__(self) -> None:
        self._rest: OrderedDict[tuple[bytes, str], list[Position]] = OrderedDict()

    def put(self, where: Filter, after: str, rest: list[Position]) -> None:
        if rest and len(rest) <= _MAX_POSITIONS:
            self._rest[_name(where), after] = rest
            if len(self._rest) > _MAX_LISTINGS:
                self._rest.popitem(last=False)

    def take(self, where: Filter, after: str) -> list[Position] | None:
        """Remove and return the positions, newest first. A second read of the same page lists again."""
        return self._rest.pop((_name(where), after), None)


def _name(where: Filter) -> bytes:
    return repr(where).encode()


class TaskFinder:
    def __init__(self, store: TasksLayout) -> None:
        self._bucket, self._documents, self._index = store.bucket, store.documents, store.index
        self._lanes, self._quarantine, self._clock = store.lanes, store.quarantine, store.clock
        self._page_cache = PageCache()

    async def find(self, where: Filter, limit: int, after: str, created_before: float | None) -> list[Task]:
        start = page_start(after, created_before)
        positions = self._page_cache.take(where, after) if after else None
        seen: dict[str, StoredTask] = {}
        if positions is None:
            positions = await (self._live(where, seen) if _is_live(where) else self._scan(where, seen))
        positions = [position for position in positions if start is None or position < start]
        return await self._page(where, positions, limit, seen)

    async def _page(
        self, where: Filter, positions: list[Position], limit: int, seen: dict[str, StoredTask]
    ) -> list[Task]:
        """Read tasks from the newest on until the page is full, and cache the remaining positions for the next page."""
        matches, page = where.matcher(self._clock()), list[Task]()
        start = 0
        while start < len(positions) and len(page) < limit:
            chunk = positions[start : start + min(_SCAN_SIZE, max(limit - len(page), MAX_CONCURRENT_REQUESTS))]
            for position, stored in zip(chunk, await self._read(chunk, seen), strict=True):
                if len(page) == limit:
                    break
                start += 1
                if stored is not None and stored.task.created_at == position.created_at and matches(stored.task):
                    page.append(stored.task)
        if page:
            self._page_cache.put(where, cursor(page[-1]), positions[start:])
        return page

    async def _read(self, positions: list[Position], seen: dict[str, StoredTask]) -> list[StoredTask | None]:
        async def read(position: Position) -> StoredTask | None:
            return seen.get(position.id) or await self._documents.read_live(position.id)

        return await in_parallel(read, positions)

    # --- through the index

    async def _live(self, where: Filter, seen: dict[str, StoredTask]) -> list[Position]:
        entries: list[Entry] = []
        if Status.PENDING in where.possible_statuses:
            entries += await self._ready(where)
        if Status.RUNNING in where.possible_statuses:
            entries += await self._leases(where, seen)
        await self._lanes.load(entries)
        shards, covers = frozenset(where.shards), where.lane_matcher()

        def may_match(entry: Entry) -> bool:
            names = self._lanes.names(entry)
            return (not shards or entry.id[0] in shards) and (names is None or covers(names.queue, names.type))

        return _newest_first(Position(entry.created_at, entry.id) for entry in entries if may_match(entry))

    async def _ready(self, where: Filter) -> list[Entry]:
        prefixes = [*(f"{READY}{shard}/" for shard in where.shards), LATER] if where.shards else [READY]
        if where.pending and PendingKind.READY not in where.pending:
            prefixes = [LATER]
        pages = await in_parallel(self._index.read, prefixes)
        return [entry for page in pages for entry in page.entries if not (where.retrying and entry.version == 1)]

    async def _leases(self, where: Filter, seen: dict[str, StoredTask]) -> list[Entry]:
        """All leases, or those that expired at least `expired_for` seconds ago: they are first in every shard."""
        if where.expired_for is None:
            pages = await in_parallel(self._index.read, [f"{LEASES}{shard}/" for shard in where.shards] or [LEASES])
            return [entry for page in pages for entry in page.entries]
        before = self._clock() - where.expired_for
        page = await self._index.read(LEASES, limit=_SCAN_SIZE)
        if not page.is_full:
            return await self._current([entry for entry in page.entries if entry.at <= before], seen)
        pages = await in_parallel(
            lambda shard: self._index.read(f"{LEASES}{shard}/", until=lambda entry: entry.at > before), SHARDS
        )
        return await self._current([entry for page in pages for entry in page.entries], seen)

    async def _current(self, entries: list[Entry], seen: dict[str, StoredTask]) -> list[Entry]:
        """Drop stale entries and remove them. Most leases that expired long ago are stale."""

        async def is_current(entry: Entry) -> bool:
            stored = await self._documents.read(entry.id)
            if stored is not None and is_stale(entry, stored.task):
                self._index.remove(entry.key)
                return False
            if stored is not None and stored.is_alive:
                seen[entry.id] = stored
            return stored is not None

        answers = await in_parallel(is_current, entries)
        return [entry for entry, current in zip(entries, answers, strict=True) if current]

    # --- by reading everything

    async def _scan(self, where: Filter, seen: dict[str, StoredTask]) -> list[Position]:
        matches, found = where.matcher(self._clock()), list[Position]()
        ids = await self.ids(where.shards)
        async for chunk in self._chunks(ids):
            matching = [stored for stored in chunk if matches(stored.task)]
            found += [Position(stored.task.created_at, stored.task.id) for stored in matching]
            if len(ids) <= _SCAN_SIZE:  # otherwise they would need too much memory
                seen.update((stored.task.id, stored) for stored in matching)
        return _newest_first(found)

    async def scan(self) -> AsyncIterator[list[Task]]:
        """All tasks, in no order."""
        async for chunk in self._chunks(await self.ids()):
            yield [stored.task for stored in chunk]

    async def _chunks(self, ids: list[str]) -> AsyncIterator[list[StoredTask]]:
        for start in range(0, len(ids), _SCAN_SIZE):
            chunk = await in_parallel(self._documents.read_live, ids[start : start + _SCAN_SIZE])
            yield [stored for stored in chunk if stored is not None]

    async def ids(self, shards: tuple[str, ...] = ()) -> list[str]:
        """The ids of all tasks, or of those in some shards, in order."""
        prefixes = [f"{TASKS}{shard}/" for shard in sorted(shards)] or [TASKS]
        listed = await in_parallel(lambda prefix: retry(lambda: self._ids(prefix)), prefixes)
        return [task_id for ids in listed for task_id in ids]

    async def _ids(self, prefix: str) -> list[str]:
        ids: list[str] = []
        keys: AsyncIterator[str] = self._bucket.keys(prefix)
        async for key in keys:
            task_id = task_id_in(key)
            if task_id is None:
                self._quarantine.put(key, "its name is not that of a task")
            else:
                ids.append(task_id)
        return ids


def _is_live(where: Filter) -> bool:
    """Whether every task that the filter can match has an index entry."""
    return UNFINISHED.issuperset(where.possible_statuses)


def _newest_first(positions: Iterable[Position]) -> list[Position]:
    return sorted(set(positions), reverse=True)
