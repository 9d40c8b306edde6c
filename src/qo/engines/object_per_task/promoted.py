"""Promoted tasks of a deep queue: ready for so long that they go before entries the listing shows first.

The index lists tasks by rank. A promoted task goes by the instant since which it waits, so in a deep queue it may stand
far behind the entries that a claim reads. Tasks are promoted in the order of their ranks, so a look reads on from
where the last one ended to the rank that is now.
"""

from qo.engines.object_per_task.index import Index
from qo.engines.object_per_task.keys import READY, SHARDS, Entry, KeyKind
from qo.engines.parallel import in_parallel

_MAX_REMEMBERED = 4096  # those waiting longest; the others are found when their rank comes


class Promoted:
    def __init__(self, index: Index, *, interval: float, max_read: int) -> None:
        self._index, self._interval, self._max_read = index, interval, max_read
        self._cursors = dict.fromkeys(SHARDS, "")
        self._entries: dict[str, Entry] = {}
        self._next_look = float("-inf")  # by the store's clock

    async def entries(self, now: float) -> list[Entry]:
        """Of all lanes. Those promoted since the last look may be missing."""
        if now >= self._next_look:
            self._next_look = now + self._interval
            await in_parallel(lambda shard: self._read_on(shard, now), SHARDS)
        self._forget()
        return list(self._entries.values())

    async def _read_on(self, shard: str, now: float) -> None:
        page = await self._index.read(
            f"{READY}{shard}/", after=self._cursors[shard], most=self._max_read, until=lambda entry: entry.rank > now
        )
        self._cursors[shard] = page.last or self._cursors[shard]
        for entry in page.entries:
            if entry.kind is KeyKind.READY and entry.due_at < entry.rank:
                self._entries[entry.key] = entry

    def _forget(self) -> None:
        """Those that were claimed, and those that too many others go before."""
        waiting = [entry for entry in self._entries.values() if self._index.is_believable(entry.key)]
        waiting.sort(key=lambda entry: entry.due_at)
        self._entries = {entry.key: entry for entry in waiting[:_MAX_REMEMBERED]}
