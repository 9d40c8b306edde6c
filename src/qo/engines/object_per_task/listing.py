"""Listings, newest first. Live tasks are found through the index; finished ones only by reading the tasks."""

from collections.abc import AsyncIterator, Iterable

from qo.engines.object_per_task.keys import LATER, LEASES, READY, SHARDS, TASKS, Entry, is_stale, task_id_in
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.page_cache import PageCache
from qo.engines.object_per_task.task_store import StoredTask
from qo.engines.parallel import MOST, in_parallel
from qo.engines.retry import retry
from qo.model import UNFINISHED, Filter, Position, Status, Task, cursor, page_start

_SCAN = 1000  # tasks read before those of no interest are let go of


class TaskListing:
    def __init__(self, store: TasksLayout) -> None:
        self._bucket, self._documents, self._index = store.bucket, store.documents, store.index
        self._lanes, self._quarantine, self._clock = store.lanes, store.quarantine, store.clock
        self._places = PageCache()

    async def find(self, where: Filter, limit: int, after: str, created_before: float | None) -> list[Task]:
        start = page_start(after, created_before)
        places = self._places.take(where, after) if after else None
        seen: dict[str, StoredTask] = {}
        if places is None:
            places = await (self._live(where, seen) if _is_live(where) else self._scan(where, seen))
        places = [place for place in places if start is None or place < start]
        return await self._page(where, places, limit, seen)

    async def _page(self, where: Filter, places: list[Position], limit: int, seen: dict[str, StoredTask]) -> list[Task]:
        """Read from the newest on until the page is full; the places behind it serve the next page."""
        matches, page = where.matcher(self._clock()), list[Task]()
        start = 0
        while start < len(places) and len(page) < limit:
            chunk = places[start : start + min(_SCAN, max(limit - len(page), MOST))]
            for place, kept in zip(chunk, await self._read(chunk, seen), strict=True):
                if len(page) == limit:
                    break
                start += 1
                if kept is not None and kept.task.created_at == place.created_at and matches(kept.task):
                    page.append(kept.task)
        if page:
            self._places.keep(where, cursor(page[-1]), places[start:])
        return page

    async def _read(self, places: list[Position], seen: dict[str, StoredTask]) -> list[StoredTask | None]:
        async def read(place: Position) -> StoredTask | None:
            return seen.get(place.id) or await self._documents.read_living(place.id)

        return await in_parallel(read, places)

    # --- through the index

    async def _live(self, where: Filter, seen: dict[str, StoredTask]) -> list[Position]:
        entries: list[Entry] = []
        if Status.PENDING in where.possible_statuses:
            entries += await self._ready(where)
        if Status.RUNNING in where.possible_statuses:
            entries += await self._leases(where, seen)
        await self._lanes.learn(entries)
        shards, covers = frozenset(where.shards), where.lane_matcher()

        def may_match(entry: Entry) -> bool:
            names = self._lanes.names(entry)
            return (not shards or entry.id[0] in shards) and (names is None or covers(names.queue, names.type))

        return _newest_first(Position(entry.created_at, entry.id) for entry in entries if may_match(entry))

    async def _ready(self, where: Filter) -> list[Entry]:
        prefixes = [*(f"{READY}{shard}/" for shard in where.shards), LATER] if where.shards else [READY]
        pages = await in_parallel(self._index.read, prefixes)
        return [entry for page in pages for entry in page.entries if not (where.retrying and entry.version == 1)]

    async def _leases(self, where: Filter, seen: dict[str, StoredTask]) -> list[Entry]:
        """All, or those that ran out so long ago: they come first in every shard."""
        if where.expired_for is None:
            pages = await in_parallel(self._index.read, [f"{LEASES}{shard}/" for shard in where.shards] or [LEASES])
            return [entry for page in pages for entry in page.entries]
        before = self._clock() - where.expired_for
        page = await self._index.read(LEASES, most=_SCAN)
        if not page.is_full:
            return await self._true([entry for entry in page.entries if entry.at <= before], seen)
        pages = await in_parallel(
            lambda shard: self._index.read(f"{LEASES}{shard}/", until=lambda entry: entry.at > before), SHARDS
        )
        return await self._true([entry for page in pages for entry in page.entries], seen)

    async def _true(self, entries: list[Entry], seen: dict[str, StoredTask]) -> list[Entry]:
        """Old leases are seldom true: stale met on the way is removed."""

        async def look(entry: Entry) -> bool:
            kept = await self._documents.read(entry.id)
            if kept is not None and is_stale(entry, kept.task):
                self._index.remove(entry.key)
                return False
            if kept is not None and kept.is_alive:
                seen[entry.id] = kept
            return kept is not None

        answers = await in_parallel(look, entries)
        return [entry for entry, true in zip(entries, answers, strict=True) if true]

    # --- by reading everything

    async def _scan(self, where: Filter, seen: dict[str, StoredTask]) -> list[Position]:
        matches, found = where.matcher(self._clock()), list[Position]()
        ids = await self.ids(where.shards)
        for start in range(0, len(ids), _SCAN):
            chunk = await in_parallel(self._documents.read_living, ids[start : start + _SCAN])
            fitting = [kept for kept in chunk if kept is not None and matches(kept.task)]
            found += [Position(kept.task.created_at, kept.task.id) for kept in fitting]
            if len(ids) <= _SCAN:  # else they are too many to keep
                seen.update((kept.task.id, kept) for kept in fitting)
        return _newest_first(found)

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
                self._quarantine.put(key, "it is not the name of a task")
            else:
                ids.append(task_id)
        return ids


def _is_live(where: Filter) -> bool:
    """All it can find has an entry in the index."""
    return UNFINISHED.issuperset(where.possible_statuses)


def _newest_first(places: Iterable[Position]) -> list[Position]:
    return sorted(set(places), reverse=True)
