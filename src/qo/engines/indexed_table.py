"""The specification's table as a store: with indexes, so that no call examines every task, and with damaged tasks.

The memory engine keeps one in the process, and the layout `one` stores one as an object.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from qo.damage import encode_damage, note_name
from qo.model import (
    NEW,
    Added,
    ClaimAllowance,
    ClaimRequest,
    CountKey,
    Counts,
    LaneHead,
    LaneHeads,
    LaneIdentity,
    NewTask,
    Status,
    Table,
    Task,
    count_key,
    effective_rank,
    lane_of,
)

LaneKey: TypeAlias = tuple[str, str, tuple[str, ...], int]  # queue, type, needs, priority


class _HeapEntry(NamedTuple):
    at: float  # the rank in a lane's heap, the time the task becomes available in the other one
    created_at: float
    id: str
    version: int
    due_at: float


class ReadyTasks:
    """Pending tasks of one process in order: one heap per lane, and one of tasks that are not due yet.

    Entries of changed tasks stay in the heaps until they reach the front, and are then skipped.
    """

    def __init__(self, task_of: Callable[[str], Task | None]) -> None:
        self._task_of = task_of
        self._lanes: dict[LaneKey, list[_HeapEntry]] = {}
        self._later: list[_HeapEntry] = []
        self._heads: LaneHeads[LaneKey] = LaneHeads()
        self._changed: set[LaneKey] = set()  # lanes whose head may have changed

    def join(self, task: Task) -> None:
        """Record that a task was written."""
        if task.status is Status.PENDING:
            heappush(self._later, _HeapEntry(task.available_at, task.created_at, task.id, task.version, task.due_at))
        self.change(lane_of(task))

    def change(self, lane: LaneKey) -> None:
        """Record that a task of this lane was written, or has left it for another priority."""
        if lane in self._lanes:
            self._changed.add(lane)

    def next_at(self) -> float | None:
        """The time at which the next task that is not due yet becomes due."""
        while self._later and self._task(self._later[0]) is None:
            heappop(self._later)
        return self._later[0].at if self._later else None

    def take(self, request: ClaimRequest, now: float) -> Iterator[Task]:
        """Yield due and eligible tasks in the order of `in_order`. Each leaves its lane: the caller claims it."""
        self._stage(now)
        allowance, fronts = ClaimAllowance(request), list[tuple[float, _HeapEntry, LaneKey]]()
        taken = set[str]()  # a task that was deleted and added again within one tick of the clock has two equal entries
        for lane in self._heads.first(request, now):
            self._changed.add(lane)
            self._open(fronts, lane, now, reached=0.0)
        for _ in range(request.limit):
            front = self._next(fronts, allowance)
            if front is None:
                return
            reached, entry, lane = front
            task = self._task(entry)
            heappop(self._lanes[lane])
            self._open(fronts, lane, now, reached)
            if task is not None and task.id not in taken:
                taken.add(task.id)
                yield task

    def _open(self, fronts: list[tuple[float, _HeapEntry, LaneKey]], lane: LaneKey, now: float, reached: float) -> None:
        """Push the lane's first entry onto `fronts`. Within a lane no task overtakes another."""
        if entries := self._trim(lane):
            effective = effective_rank(entries[0].at, entries[0].due_at, now)
            heappush(fronts, (max(reached, effective), entries[0], lane))

    def _next(
        self, fronts: list[tuple[float, _HeapEntry, LaneKey]], allowance: ClaimAllowance
    ) -> tuple[float, _HeapEntry, LaneKey] | None:
        while fronts:
            front = heappop(fronts)
            if allowance.take(front[2][1], front[2][2]):
                return front
        return None

    def has(self, request: ClaimRequest, now: float) -> bool:
        self._stage(now)
        return bool(self._heads.first(replace(request, limit=1), now))

    def _stage(self, now: float) -> None:
        while self._later and self._later[0].at <= now:
            task = self._task(heappop(self._later))
            if task is not None:
                lane = lane_of(task)
                entry = _HeapEntry(task.rank, task.created_at, task.id, task.version, task.due_at)
                heappush(self._lanes.setdefault(lane, []), entry)
                self._changed.add(lane)
        for lane in self._changed:
            entries = self._trim(lane)
            if entries:
                first = entries[0]
                head = LaneHead(first.at, (first.created_at, first.id), first.due_at)
                self._heads.put(lane, LaneIdentity(*lane[:3]), head)
            else:
                self._heads.remove(lane)
                self._lanes.pop(lane, None)
        self._changed.clear()

    def _trim(self, lane: LaneKey) -> list[_HeapEntry]:
        """Drop outdated entries from the front of a lane."""
        entries = self._lanes.get(lane, [])
        while entries and self._task(entries[0]) is None:
            heappop(entries)
        return entries

    def _task(self, entry: _HeapEntry) -> Task | None:
        task = self._task_of(entry.id)
        if task is None or task.version != entry.version or task.status is not Status.PENDING:
            return None
        return task


class IndexedTable(Table):
    """A damaged task is not in `tasks`, and a note with the name `note_name` describes it. It keeps its id."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = ReadyTasks(self.tasks.get)
        self._counts: Counter[CountKey] = Counter()
        self._batches: dict[str, Counter[CountKey]] = {}

    def has_ready(self, request: ClaimRequest, now: float) -> bool:
        return self._ready.has(request, now)

    def next_at(self) -> float | None:
        """When the next task that is not due yet becomes due."""
        return self._ready.next_at()

    def count(self, batch: str | None = None) -> Counts:
        counts = self._counts if batch is None else self._batches.get(batch, Counter())
        return {key: number for key, number in counts.items() if number}

    def set_aside(self, task_id: str, problem: str, data: bytes = b"") -> None:
        """Describe a damaged task in a note. `data` is its stored form."""
        if note_name(task_id) not in self._notes:
            self.write_note(note_name(task_id), encode_damage(task_id, problem, data), NEW)

    def damage(self, task_id: str, problem: str) -> None:
        """For tests: treat a task as damaged."""
        self._remove(self.tasks[task_id])
        self.set_aside(task_id, problem)

    def _add(self, new: NewTask, now: float, lead: float) -> Added:
        last = self._last_id(new)
        if self._is_damaged(last):
            return Added(last, new=False)
        return super()._add(new, now, lead)

    def _first(self, request: ClaimRequest, now: float) -> list[Task]:
        return list(self._ready.take(request, now))

    def _delete(self, task_id: str) -> bool:
        if self._is_damaged(task_id):
            self.drop_note(note_name(task_id))
            self._drop_follower(task_id)
            return True
        return super()._delete(task_id)

    def _is_stored(self, task_id: str) -> bool:
        return super()._is_stored(task_id) or self._is_damaged(task_id)

    def _is_damaged(self, task_id: str) -> bool:
        return task_id not in self.tasks and note_name(task_id) in self._notes

    def _write(self, task: Task, *, without_event: bool = False, log: str | None = None) -> None:
        before = self.tasks.get(task.id)
        if before is not None:
            self._add_to_counts(before, -1)
            if before.priority != task.priority:
                self._ready.change(lane_of(before))
        super()._write(task, without_event=without_event, log=log)
        self._index(task)

    def _index(self, task: Task) -> None:
        self._add_to_counts(task, 1)
        self._ready.join(task)

    def _add_to_counts(self, task: Task, step: int) -> None:
        key = count_key(task)
        self._counts[key] += step
        if task.batch is None:
            return
        counts = self._batches.setdefault(task.batch, Counter())
        counts[key] += step
        if not counts[key]:
            del counts[key]
            if not counts:
                del self._batches[task.batch]

    def _remove(self, task: Task) -> None:
        super()._remove(task)
        self._add_to_counts(task, -1)
