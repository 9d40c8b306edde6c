"""The entries that a sweep has listed, sorted once so that a claim does not examine all of them.

A deep queue lists some thousand entries. They are sorted once, and claims take from the front. Tasks that are promoted
during the second that a sweep lasts are found by the next sweep.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from qo.engines.object_per_task.index import Index
from qo.engines.object_per_task.keys import Entry, lane_of
from qo.engines.object_per_task.lanes import LaneDirectory
from qo.model import ClaimRequest, in_order

_MAX_UNSORTED = 256  # entries that every claim merges into the sorted ones


class ListedEntries:
    """The entries that match one kind of claim request."""

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
