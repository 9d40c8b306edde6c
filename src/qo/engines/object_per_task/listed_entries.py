"""Entries that a sweep has listed: the first of them for a claim, without a look at all the others.

A deep queue shows some thousand entries. They are put in order once, and claims take from the front. Tasks that are
promoted during the second that a sweep lasts are met by the next sweep.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from qo.engines.object_per_task.index import Index
from qo.engines.object_per_task.keys import Entry, lane_of
from qo.engines.object_per_task.lanes import LaneDirectory
from qo.model import ClaimRequest, in_order

_MAX_UNSORTED = 256  # entries that each claim puts in order beside the others


class ListedEntries:
    """Of one kind of want."""

    def __init__(self, index: Index, lanes: LaneDirectory) -> None:
        self._index, self._lanes = index, lanes
        self._entries: dict[str, Entry] = {}
        self._by_shard: dict[str, deque[Entry]] = {}  # those read in the order of the index
        self._in_order: deque[Entry] = deque()
        self._unsorted: list[Entry] = []
        self._later: list[tuple[float, str]] = []  # those that are not due yet

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
        """The next entries of a shard, in the order of the index."""
        listed = list(entries)
        self._by_shard.setdefault(shard, deque()).extend(listed)
        self.put(listed)

    def count_believable(self) -> int:
        return sum(map(self._index.is_believable, self._entries))

    def has_believable(self) -> bool:
        return any(map(self._index.is_believable, self._entries))

    def has_shown(self, shard: str, request: ClaimRequest) -> bool:
        """The shard has shown as many as this claim could take at most."""
        listed = self._by_shard.get(shard, deque())
        while listed and self._index.is_removed(listed[0].key):
            listed.popleft()
        return sum(1 for _ in self._within_limits(listed, request, request.limit)) >= request.limit

    def all_due(self, now: float) -> list[Entry]:
        due = (entry for entry in self._entries.values() if entry.at <= now)
        return in_order((entry for entry in due if self._index.is_believable(entry.key)), now, lane_of)

    def first_due(self, request: ClaimRequest, now: float, number: int) -> list[Entry]:
        """The first so many; of types with a limit only as many as that."""
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
        kept = [entry for entry in (*self._in_order, *self._unsorted) if not self._index.is_removed(entry.key)]
        self._in_order, self._unsorted = deque(in_order(kept, now, lane_of)), []

    def _within_limits(self, entries: Iterable[Entry], request: ClaimRequest, number: int) -> Iterator[Entry]:
        """The first so many that a claim could take."""
        by_type: Counter[str] = Counter()
        for entry in entries:
            if number <= 0:
                return
            names = self._lanes.names(entry)
            if names is None or not self._index.is_believable(entry.key):
                continue
            if names.type in request.per_type_limits:
                by_type[names.type] += 1
                if by_type[names.type] > request.per_type_limits[names.type]:
                    continue
            number -= 1
            yield entry
