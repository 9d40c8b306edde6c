"""Promoted tasks of a deep queue, which have waited so long that they overtake the first entries of the index.

The index is sorted by rank. A promoted task is ordered by the time since which it waits, so in a deep queue it may be
far behind the entries that a claim reads. Tasks are promoted in the order of their ranks, so each read continues where
the last one ended, up to the current time.
"""

from qo.engines.object_per_task.index import Index
from qo.engines.object_per_task.keys import READY, SHARDS, Entry, KeyKind
from qo.engines.parallel import in_parallel

_MAX_CACHED = 4096  # the longest waiting; others are found when their rank is reached


class Promoted:
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
        self._entries = {entry.key: entry for entry in waiting[:_MAX_CACHED]}
