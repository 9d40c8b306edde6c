"""Pending tasks of one process in order: a heap for each lane, and those whose time has not come beside them.

Entries of tasks that changed stay until they come up, and are then left out.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from qo.model import ClaimRequest, LaneHead, LaneHeads, LaneIdentity, Status, Task, effective_rank, lane_of

LaneKey: TypeAlias = tuple[str, str, tuple[str, ...], int]  # queue, type, needs, priority


class _Place(NamedTuple):
    at: float  # rank in a lane, the instant it is available beside it
    id: str
    version: int
    due_at: float


class ReadyTasks:
    def __init__(self, task_of: Callable[[str], Task | None]) -> None:
        self._task_of = task_of
        self._lanes: dict[LaneKey, list[_Place]] = {}
        self._later: list[_Place] = []
        self._heads: LaneHeads[LaneKey] = LaneHeads()
        self._changed: set[LaneKey] = set()  # lanes whose head may be another one

    def join(self, task: Task) -> None:
        """A task was written."""
        if task.status is Status.PENDING:
            heappush(self._later, _Place(task.available_at, task.id, task.version, task.due_at))
        lane = lane_of(task)
        if lane in self._lanes:
            self._changed.add(lane)

    def next_at(self) -> float | None:
        """When the first of those whose time has not come will be due."""
        while self._later and self._task(self._later[0]) is None:
            heappop(self._later)
        return self._later[0].at if self._later else None

    def take(self, request: ClaimRequest, now: float) -> Iterator[Task]:
        """Due and eligible tasks, in the order of `in_order`. Each is taken out of its lane: it is to be claimed."""
        self._stage(now)
        left, arms = dict(request.per_type_limits), list[tuple[float, _Place, LaneKey]]()
        for lane in self._heads.first(request, now):
            self._changed.add(lane)
            self._open(arms, lane, now, reached=0.0)
        for _ in range(request.limit):
            arm = self._next(arms, left)
            if arm is None:
                return
            reached, place, lane = arm
            task = self._task(place)
            heappop(self._lanes[lane])
            self._open(arms, lane, now, reached)
            if task is not None:
                yield task

    def _open(self, arms: list[tuple[float, _Place, LaneKey]], lane: LaneKey, now: float, reached: float) -> None:
        """Put the first of the lane beside those of the others. Within a lane nothing overtakes."""
        if places := self._trim(lane):
            effective = effective_rank(places[0].at, places[0].due_at, now)
            heappush(arms, (max(reached, effective), places[0], lane))

    def _next(
        self, arms: list[tuple[float, _Place, LaneKey]], left: dict[str, int]
    ) -> tuple[float, _Place, LaneKey] | None:
        while arms:
            arm = heappop(arms)
            type_ = arm[2][1]
            if left.get(type_, 1) > 0:
                if type_ in left:
                    left[type_] -= 1
                return arm
        return None

    def has(self, request: ClaimRequest, now: float) -> bool:
        self._stage(now)
        return bool(self._heads.first(replace(request, limit=1), now))

    def _stage(self, now: float) -> None:
        while self._later and self._later[0].at <= now:
            task = self._task(heappop(self._later))
            if task is not None:
                lane = lane_of(task)
                heappush(self._lanes.setdefault(lane, []), _Place(task.rank, task.id, task.version, task.due_at))
                self._changed.add(lane)
        for lane in self._changed:
            places = self._trim(lane)
            if places:
                head = LaneHead(places[0].at, places[0].id, places[0].due_at)
                self._heads.put(lane, LaneIdentity(*lane[:3]), head)
            else:
                self._heads.remove(lane)
                self._lanes.pop(lane, None)
        self._changed.clear()

    def _trim(self, lane: LaneKey) -> list[_Place]:
        """So that the first in the lane is a task that is really there."""
        places = self._lanes.get(lane, [])
        while places and self._task(places[0]) is None:
            heappop(places)
        return places

    def _task(self, place: _Place) -> Task | None:
        task = self._task_of(place.id)
        if task is None or task.version != place.version or task.status is not Status.PENDING:
            return None
        return task
