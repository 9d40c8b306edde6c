"""The index entries of a deep queue that claims have read, in order."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from qo.engines.object_per_task.index import Index, LaneDirectory
from qo.engines.object_per_task.keys import READY, SHARDS, Entry, KeyKind, lane_of
from qo.engines.parallel import in_parallel
from qo.model import ClaimRequest, in_order

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
        by_type: Counter[str] = Counter()
        for entry in entries:
            if number <= 0:
                return
            names = self._lanes.names(entry)
            if names is None or not self._index.is_usable(entry.key):
                continue
            if names.type in request.per_type_limits:
                by_type[names.type] += 1
                if by_type[names.type] > request.per_type_limits[names.type]:
                    continue
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
