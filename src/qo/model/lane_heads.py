"""Finds the lanes whose tasks are claimed next from the first task of each lane.

A lane has one queue, type, set of needs (with the group) and priority. Its head is its first ready task. The `limit`
tasks that are claimed next are in the `limit` lanes whose heads rank first. Each kind of worker that claims from many
lanes has a view: heaps of the heads that it may claim. A new head adds one entry to each of these views, however many
lanes there are.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from contextlib import closing
from heapq import heapify, heappop, heappush
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from qo.model.filter import ClaimAllowance, ClaimRequest, eligibility, without_group_limits

_MAX_LANES_BY_TYPE = 64  # claims of types with at most this many lanes use no view
_MAX_VIEWS = 16
_SPARE_ENTRIES = 64  # a view is rebuilt when it has more than this and two entries per lane

Key = TypeVar("Key", bound=Hashable)
_RequestKind: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str], bool]


class LaneIdentity(NamedTuple):
    queue: str
    type: str
    needs: tuple[str, ...]


class LaneHead(NamedTuple):
    """The first ready task of a lane."""

    rank: float
    place: Any  # of two heads of equal rank, the one with the lower place comes first
    due_at: float


class _View(Generic[Key]):
    """The heads that workers of one kind may claim. Entries of former heads are dropped when they are reached."""

    def __init__(self, request: ClaimRequest) -> None:
        self._is_eligible = eligibility(without_group_limits(request))  # these differ from claim to claim
        self._waiting: list[tuple[float, Any, Key, LaneHead]] = []  # by rank
        self._promoted: list[tuple[float, float, Any, Key, LaneHead]] = []  # by the start of their waiting time

    def __len__(self) -> int:
        return len(self._waiting) + len(self._promoted)

    def includes(self, name: LaneIdentity) -> bool:
        return self._is_eligible(name.queue, name.type, name.needs)

    def fill(self, heads: Iterable[tuple[Key, LaneHead]]) -> None:
        self._waiting = [(head.rank, head.place, key, head) for key, head in heads]
        heapify(self._waiting)

    def push(self, key: Key, head: LaneHead) -> None:
        heappush(self._waiting, (head.rank, head.place, key, head))

    def in_order(self, now: float, current: Callable[[Key], LaneHead | None]) -> Generator[Key, None, None]:
        """The lanes in the order of their heads at `now`. Drops entries that are no longer heads."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, key, head = heappop(self._waiting)
            if current(key) is head:
                heappush(self._promoted, (min(head.rank, head.due_at), head.rank, head.place, key, head))
        seen: list[tuple[Key, LaneHead]] = []
        promoted: list[tuple[Key, LaneHead]] = []
        try:
            while self._promoted or self._waiting:
                is_promoted = bool(self._promoted)
                key, head = heappop(self._promoted)[3:] if is_promoted else heappop(self._waiting)[2:]
                if current(key) is head:
                    (promoted if is_promoted else seen).append((key, head))
                    yield key
        finally:
            for key, head in promoted:
                heappush(self._promoted, (min(head.rank, head.due_at), head.rank, head.place, key, head))
            for key, head in seen:
                self.push(key, head)


class LaneHeads(Generic[Key]):
    """The heads of all lanes that have one, by a key of the lane."""

    def __init__(self) -> None:
        self._heads: dict[Key, LaneHead] = {}
        self._names: dict[Key, LaneIdentity] = {}
        self._typed: dict[str, dict[Key, None]] = {}
        self._views: OrderedDict[_RequestKind, _View[Key]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heads)

    @property
    def view_sizes(self) -> list[int]:
        """The number of entries of each view."""
        return [len(view) for view in self._views.values()]

    def clear(self) -> None:
        self._heads.clear()
        self._names.clear()
        self._typed.clear()
        self._views.clear()

    def put(self, key: Key, name: LaneIdentity, head: LaneHead) -> None:
        """Set the head of a lane."""
        before = self._heads.get(key)
        if before == head:
            return
        if before is None:
            self._names[key] = name
            self._typed.setdefault(name.type, {})[key] = None
        self._heads[key] = head
        for kind in [kind for kind, view in self._views.items() if len(view) > 2 * len(self._heads) + _SPARE_ENTRIES]:
            del self._views[kind]
        for view in self._views.values():
            if view.includes(name):
                view.push(key, head)

    def remove(self, key: Key) -> None:
        """Remove a lane that is empty or no longer exists."""
        if key not in self._heads:
            return
        name = self._names.pop(key)
        del self._heads[key], self._typed[name.type][key]
        if not self._typed[name.type]:
            del self._typed[name.type]

    def first(self, request: ClaimRequest, now: float) -> list[Key]:
        """The lanes that contain the `limit` tasks of a claim, in the order of their heads."""
        allowance = ClaimAllowance(request)  # each lane counts as one task, because it has at least one
        first: list[Key] = []
        if request.limit <= 0:
            return first
        with closing(self._eligible(request, now)) as eligible:
            for key in eligible:
                name = self._names[key]
                if not allowance.take(name.type, name.needs):
                    continue
                first.append(key)
                if len(first) == request.limit:
                    break
        return first

    def _eligible(self, request: ClaimRequest, now: float) -> Generator[Key, None, None]:
        if request.types and sum(len(self._typed.get(type_, ())) for type_ in request.types) <= _MAX_LANES_BY_TYPE:
            view = _View[Key](request)
            self._fill(view, request)
            return view.in_order(now, self._heads.get)
        return self._view(request).in_order(now, self._heads.get)

    def _fill(self, view: _View[Key], request: ClaimRequest) -> None:
        typed = (key for type_ in frozenset(request.types) for key in self._typed.get(type_, ()))
        keys = typed if request.types else iter(self._heads)
        view.fill((key, self._heads[key]) for key in keys if view.includes(self._names[key]))

    def _view(self, request: ClaimRequest) -> _View[Key]:
        kind = (request.queues, request.types, request.capabilities, request.takes_groups)
        view = self._views.get(kind)
        if view is None:
            view = _View[Key](request)
            self._fill(view, request)
            self._views[kind] = view
            if len(self._views) > _MAX_VIEWS:
                self._views.popitem(last=False)
        self._views.move_to_end(kind)
        return view
