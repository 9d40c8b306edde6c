"""The sweeper: repairs the index from the tasks and clears leftovers away. A safety net: nothing relies on it."""

from collections import defaultdict

from qo.engines.object_per_task.keys import ENTRY_PREFIXES, Entry, index_key, is_stale, task_key
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.listing import TaskListing
from qo.engines.object_per_task.task_counts import TaskCounts
from qo.engines.object_per_task.task_document import REMOVING, as_tombstone
from qo.engines.object_per_task.task_store import StoredTask
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry
from qo.errors import Conflict
from qo.model import FINISHED

YOUNGEST = 3600.0  # seconds: nothing younger is removed, or a late write could bring it back, or find it gone


class IndexSweeper:
    def __init__(self, store: TasksLayout, finding: TaskListing, counting: TaskCounts) -> None:
        self._bucket, self._documents, self._index = store.bucket, store.documents, store.index
        self._lanes, self._clock = store.lanes, store.clock
        self._finding, self._counting = finding, counting

    async def sweep(self) -> int:
        """One round; how many things were put right. Tasks are listed first: their entries are older than they."""
        ids = await self._finding.ids()
        entries: defaultdict[str, list[Entry]] = defaultdict(list)
        for prefix in ENTRY_PREFIXES:
            for entry in (await self._index.read(prefix)).entries:
                entries[entry.id].append(entry)
        # One entry is believed: a claim that finds it wrong removes it, and the next sweep sees a task without any.
        doubtful = [task_id for task_id in ids if len(entries[task_id]) != 1 and not self._is_settled(task_id, entries)]
        repaired = sum(await in_parallel(lambda task_id: self._repair(task_id, entries[task_id]), doubtful))
        known = set(ids)
        orphans = [entry for task_id, found in entries.items() if task_id not in known for entry in found]
        return repaired + sum(await in_parallel(self._clear, orphans))

    def _is_settled(self, task_id: str, entries: dict[str, list[Entry]]) -> bool:
        return not entries[task_id] and self._counting.is_known_finished(task_id)

    async def _repair(self, task_id: str, entries: list[Entry]) -> int:
        kept = await self._documents.read(task_id)
        if kept is None:
            return 0
        if not kept.is_alive:
            return await self._remove(kept)
        if kept.task.status in FINISHED:
            self._counting.know(kept.task)
        stale = [entry for entry in entries if is_stale(entry, kept.task)]
        strange = [entry for entry in entries if entry not in stale and entry.key != index_key(kept.task)]
        stale += [entry for entry in strange if await self._is_old(entry)]
        for entry in stale:
            self._index.remove(entry.key)
        return len(stale) + await self._complete(kept, {entry.key for entry in entries})

    async def _complete(self, kept: StoredTask, present: set[str]) -> int:
        """Write the entry the task needs. If the task changes meanwhile, it is one more stale entry."""
        needed = index_key(kept.task)
        if needed is None or needed in present:
            return 0
        await self._index.write(needed, self._lanes.content(kept.task))
        self._index.announce(needed)
        return 1

    async def _clear(self, entry: Entry) -> int:
        """An entry whose task is not there: of a submission under way, unless it is old."""
        if not await self._is_old(entry) or await self._documents.is_occupied(entry.id):
            return 0
        self._index.remove(entry.key)
        return 1

    async def _is_old(self, entry: Entry) -> bool:
        blob = await retry(lambda: self._bucket.get(entry.key))
        return blob is not None and blob.written_at <= self._clock() - YOUNGEST

    async def _remove(self, kept: StoredTask) -> int:
        """Clear an old tombstone away. It is marked first: from then on nobody writes there, so nothing can be lost."""
        if kept.written_at > self._clock() - YOUNGEST:
            return 0
        if kept.document.successor and await self._documents.is_occupied(kept.document.successor):
            return 0  # it says which task holds their idempotency key
        try:
            await self._documents.write(as_tombstone(kept.document, REMOVING), kept)
        except Conflict:
            return 0
        await retry(lambda: self._bucket.delete(task_key(kept.task.id)))
        return 1
