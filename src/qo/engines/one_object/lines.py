"""Pending tasks in order: a line for each lane, and those whose time has not come beside them.

Entries of tasks that changed stay until they come up, and are then left out.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from qo.model import Status, Task, Want, effective_rank, eligible, lane_of

Lane: TypeAlias = tuple[str, str, tuple[str, ...], int]  # queue, type, needs, priority


class _Place(NamedTuple):
    at: float  # rank in a line, the instant it is available beside it
    id: str
    version: int
    due_at: float


class Lines:
    def __init__(self, task_of: Callable[[str], Task | None]) -> None:
        self._task_of = task_of
        self._lines: dict[Lane, list[_Place]] = {}
        self._later: list[_Place] = []

    def join(self, task: Task) -> None:
        if task.status is Status.PENDING:
            heappush(self._later, _Place(task.available_at, task.id, task.version, task.due_at))

    def next_at(self) -> float | None:
        """When the first of those whose time has not come will be due."""
        while self._later and self._task(self._later[0]) is None:
            heappop(self._later)
        return self._later[0].at if self._later else None

    def take(self, want: Want, now: float) -> Iterator[Task]:
        """Due and eligible tasks, in the order of `in_order`. Each is taken out of its line: it is to be claimed."""
        self._stage(now)
        left, reached = dict(want.at_most), dict[Lane, float]()
        lanes = [lane for lane in self._lines if eligible(want, *lane[:3])]
        for _ in range(want.limit):
            heads = [
                (max(reached.get(lane, 0.0), effective_rank(head.at, head.due_at, now)), head, lane)
                for lane in lanes
                if left.get(lane[1], 1) > 0 and (line := self._lines.get(lane)) and (head := line[0])
            ]
            if not heads:
                return
            reached_now, head, lane = min(heads)
            reached[lane] = reached_now
            task = self._task(head)
            heappop(self._lines[lane])
            self._trim(lane)
            if lane[1] in left:
                left[lane[1]] -= 1
            if task is not None:
                yield task

    def has(self, want: Want, now: float) -> bool:
        self._stage(now)
        return any(line and eligible(want, *lane[:3]) for lane, line in self._lines.items())

    def _stage(self, now: float) -> None:
        while self._later and self._later[0].at <= now:
            task = self._task(heappop(self._later))
            if task is not None:
                line = self._lines.setdefault(lane_of(task), [])
                heappush(line, _Place(task.rank, task.id, task.version, task.due_at))
        for lane in list(self._lines):
            self._trim(lane)

    def _trim(self, lane: Lane) -> None:
        """So that the first in every line is a task that is really there."""
        line = self._lines[lane]
        while line and self._task(line[0]) is None:
            heappop(line)
        if not line:
            del self._lines[lane]

    def _task(self, place: _Place) -> Task | None:
        task = self._task_of(place.id)
        if task is None or task.version != place.version or task.status is not Status.PENDING:
            return None
        return task
