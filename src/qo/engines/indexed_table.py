"""The specification's table as a store: with indexes, so that no call examines every task, and with damaged tasks.

The memory engine keeps one in the process, and the layout `one` stores one as an object.
"""

from collections import Counter

from qo.damage import encode_damage, note_name
from qo.engines.ready_tasks import ReadyTasks
from qo.model import NEW, Added, ClaimRequest, CountKey, Counts, NewTask, Table, Task, count_key


class IndexedTable(Table):
    """A damaged task is not in `tasks`, and a note with the name `note_name` describes it. It keeps its id."""

    def __init__(self) -> None:
        super().__init__()
        self._ready = ReadyTasks(self.tasks.get)
        self._counts: Counter[CountKey] = Counter()

    def has_ready(self, request: ClaimRequest, now: float) -> bool:
        return self._ready.has(request, now)

    def next_at(self) -> float | None:
        """When the next task that is not due yet becomes due."""
        return self._ready.next_at()

    def count(self) -> Counts:
        return {key: number for key, number in self._counts.items() if number}

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

    def _write(self, task: Task, *, without_event: bool = False) -> None:
        before = self.tasks.get(task.id)
        if before is not None:
            self._counts[count_key(before)] -= 1
        super()._write(task, without_event=without_event)
        self._index(task)

    def _index(self, task: Task) -> None:
        self._counts[count_key(task)] += 1
        self._ready.join(task)

    def _remove(self, task: Task) -> None:
        super()._remove(task)
        self._counts[count_key(task)] -= 1
