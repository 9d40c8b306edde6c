"""Repairs the index from the tasks and removes leftovers. Correctness does not depend on it."""

from collections import defaultdict

from qo.engines.object_per_task.counts import TaskCounts
from qo.engines.object_per_task.finder import TaskFinder
from qo.engines.object_per_task.keys import ENTRY_PREFIXES, Entry, index_key, is_stale, task_key
from qo.engines.object_per_task.layout import TasksLayout
from qo.engines.object_per_task.task_store import REMOVING, StoredTask, as_tombstone
from qo.engines.requests import in_parallel, retry
from qo.errors import Conflict
from qo.model import FINISHED

MIN_AGE = 3600.0  # younger objects are not removed: a delayed write could recreate one, or need it


class IndexRepair:
    def __init__(self, store: TasksLayout, listing: TaskFinder, counts: TaskCounts) -> None:
        self._bucket, self._documents, self._index = store.bucket, store.documents, store.index
        self._lanes, self._clock = store.lanes, store.clock
        self._listing, self._counts = listing, counts

    async def run(self) -> int:
        """Run once and return the number of repairs. Tasks are listed first: entries are written before tasks."""
        ids = await self._listing.ids()
        entries: defaultdict[str, list[Entry]] = defaultdict(list)
        for prefix in ENTRY_PREFIXES:
            for entry in (await self._index.read(prefix)).entries:
                entries[entry.id].append(entry)
        # A single entry is trusted: a claim that finds it wrong removes it, and the next repair finds the task without
        # one.
        suspect = [task_id for task_id in ids if len(entries[task_id]) != 1 and not self._is_settled(task_id, entries)]
        repaired = sum(await in_parallel(lambda task_id: self._repair(task_id, entries[task_id]), suspect))
        known = set(ids)
        orphans = [entry for task_id, found in entries.items() if task_id not in known for entry in found]
        return repaired + sum(await in_parallel(self._clear, orphans))

    def _is_settled(self, task_id: str, entries: dict[str, list[Entry]]) -> bool:
        return not entries[task_id] and self._counts.is_known_finished(task_id)

    async def _repair(self, task_id: str, entries: list[Entry]) -> int:
        stored = await self._documents.read(task_id)
        if stored is None:
            return 0
        if not stored.is_alive:
            return await self._remove(stored)
        if stored.task.status in FINISHED:
            self._counts.know(stored.task)
        stale = [entry for entry in entries if is_stale(entry, stored.task)]
        unexpected = [entry for entry in entries if entry not in stale and entry.key != index_key(stored.task)]
        stale += [entry for entry in unexpected if await self._is_old(entry)]
        for entry in stale:
            self._index.remove(entry.key)
        return len(stale) + await self._complete(stored, {entry.key for entry in entries})

    async def _complete(self, stored: StoredTask, present: set[str]) -> int:
        """Write the entry that the task needs. If the task changes in the meantime, the entry is stale."""
        needed = index_key(stored.task)
        if needed is None or needed in present:
            return 0
        await self._index.write(needed, self._lanes.content(stored.task))
        self._index.announce(needed)
        return 1

    async def _clear(self, entry: Entry) -> int:
        """Remove an entry without a task, if it is old: a younger one may belong to a submission in progress."""
        if not await self._is_old(entry) or await self._documents.is_occupied(entry.id):
            return 0
        self._index.remove(entry.key)
        return 1

    async def _is_old(self, entry: Entry) -> bool:
        blob = await retry(lambda: self._bucket.get(entry.key))
        return blob is not None and blob.written_at <= self._clock() - MIN_AGE

    async def _remove(self, stored: StoredTask) -> int:
        """Remove an old tombstone. It is marked first, so that no process writes to it and no write is lost."""
        if stored.written_at > self._clock() - MIN_AGE:
            return 0
        if stored.document.successor and await self._documents.is_occupied(stored.document.successor):
            return 0  # the tombstone names the task that holds their idempotency key
        try:
            await self._documents.write(as_tombstone(stored.document, REMOVING), stored)
        except Conflict:
            return 0
        await retry(lambda: self._bucket.delete(task_key(stored.task.id)))
        return 1
