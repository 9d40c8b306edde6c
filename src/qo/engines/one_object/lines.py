"""Pending tasks in order: a line for each kind of want, and those whose time has not come beside them.

Entries of tasks that changed stay until they come up, and are then left out.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from qo.model import Status, Task, Want, eligible

Lane: TypeAlias = tuple[str, str, tuple[str, ...]]  # queue, type, needs


class _Place(NamedTuple):
    at: float  # rank in a line, the instant it is available beside it
    id: str
    version: int


class Lines:
    def __init__(self, task_of: Callable[[str], Task | None]) -> None:
        self._task_of = task_of
        self._lines: dict[Lane, list[_Place]] = {}
        self._later: list[_Place] = []

    def join(self, task: Task) -> None:
        if task.status is Status.PENDING:
            heappush(self._later, _Place(task.available_at, task.id, task.version))

    def next_at(self) -> float | None:
        """When the first of those whose time has not come will be due."""
        while self._later and self._task(self._later[0]) is None:
            heappop(self._later)
        return self._later[0].at if self._later else None

    def take(self, want: Want, now: float) -> Iterator[Task]:
        """Due and eligible tasks, first come first. Each is taken out of its line: it is to be claimed."""
        self._stage(now)
        left = dict(want.at_most)
        for _ in range(want.limit):
            best: tuple[_Place, Lane] | None = None
            for lane, line in self._lines.items():
                if line and left.get(lane[1], 1) > 0 and eligible(want, *lane):
                    best = min(best or (line[0], lane), (line[0], lane))
            if best is None:
                return
            place, lane = best
            task = self._task(place)
            heappop(self._lines[lane])
            self._trim(lane)
            if lane[1] in left:
                left[lane[1]] -= 1
            if task is not None:
                yield task

    def has(self, want: Want, now: float) -> bool:
        self._stage(now)
        return any(line and eligible(want, *lane) for lane, line in self._lines.items())

    def _stage(self, now: float) -> None:
        while self._later and self._later[0].at <= now:
            task = self._task(heappop(self._later))
            if task is not None:
                lane = (task.queue, task.type, task.needs)
                heappush(self._lines.setdefault(lane, []), _Place(task.rank, task.id, task.version))
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
