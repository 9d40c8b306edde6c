"""All operations on an in-memory set of tasks and notes: the specification that every engine is tested against."""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from itertools import count
from typing import Final, NamedTuple

from qo.errors import Conflict
from qo.model import change as rules
from qo.model.change import Change
from qo.model.check import check_distinct
from qo.model.filter import ClaimAllowance, ClaimRequest, CountKey, Counts, Filter, Position, eligibility
from qo.model.ranking import in_order
from qo.model.task import FINISHED, Event, NewTask, Status, Task, admit, event_of, lane_of, stamps

NEW: Final = "new"  # as `expected`: the note must not exist
ANY: Final = "any"  # as `expected`: replace any version

# Notes with this prefix grant rights or record actions: tokens and the audit trail. Where the store has access control
# (bucket policies, GRANTs, ACLs), only an administrator's credentials can read and write them.
ADMIN_NOTES: Final = "admin/"
SCHEDULE_NOTES: Final = "schedules/"
AUDIT_NOTES: Final = "audit/"  # new records of the audit trail: every role may add them, administrators read them

# A note whose stored form is damaged is returned as DAMAGED followed by the stored bytes, so that it can be kept and
# replaced. No JSON text starts with this byte, so it is not mistaken for a document.
DAMAGED: Final = b"\xff"


class Note(NamedTuple):
    """A small named document with compare-and-set writes, such as a worker registration or the controls."""

    name: str
    data: bytes
    version: str


class Added(NamedTuple):
    """The receipt of one submission."""

    id: str  # the submitted id, or the id of the last task with its idempotency key
    new: bool  # False: this task already existed and was not changed


class Table:
    """The operations of an engine, synchronous, with the time as an argument."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self._followers: dict[str, str] = {}  # from the id of the first task with a key to the id of the last
        self._events: dict[str, list[Event]] = {}
        self._notes: dict[str, Note] = {}
        self._note_versions = count(1)

    def add(self, tasks: Sequence[NewTask], now: float) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return [self._add(task, at, now - at) for task, at in zip(tasks, stamps(now, len(tasks)), strict=True)]

    def _add(self, new: NewTask, now: float, lead: float) -> Added:
        last = self._last_id(new)
        task = admit(self.tasks.get(last), new, now, lead=lead)
        if task is None or task.id in self.tasks:  # an earlier attempt of this submission created it
            return Added(last, new=False)
        self._write(task)
        if task.id != new.id:
            self._followers[new.id] = task.id
        return Added(task.id, new=True)

    def _last_id(self, new: NewTask) -> str:
        """The id of the last task with the idempotency key of `new`, if it has followers."""
        last = new.id if new.idempotency_key is None else self._followers.get(new.id, new.id)
        return last if self._is_stored(last) else new.id

    def _is_stored(self, task_id: str) -> bool:
        return task_id in self.tasks

    def claim(self, request: ClaimRequest, now: float) -> list[Task]:
        if request.is_repeat and (
            leased := [task for task in self.tasks.values() if _is_leased_under(task, request.lease_id)]
        ):
            return in_order(leased, now, lane_of)
        claimed = [rules.claim(task, request, now) for task in self._first(request, now)]
        for task in claimed:
            self._write(task)
        return claimed

    def _first(self, request: ClaimRequest, now: float) -> list[Task]:
        """The due and eligible tasks that rank first, within the limits of the request."""
        is_eligible, allowance, first = eligibility(request), ClaimAllowance(request), list[Task]()
        due = (task for task in self.tasks.values() if rules.is_due(task, now))
        eligible = (task for task in due if is_eligible(task.queue, task.type, task.stored_needs))
        for task in in_order(eligible, now, lane_of):
            if len(first) == request.limit:
                break
            if allowance.take(task.type, task.stored_needs):
                first.append(task)
        return first

    def apply(self, changes: Sequence[Change], now: float) -> list[bool]:
        check_distinct(change.id for change in changes)
        return [self._apply(change, now) for change in changes]

    def _apply(self, change: Change, now: float) -> bool:
        task = self.tasks.get(change.id)
        if task is None:
            return False
        changed = rules.apply(task, change, now)
        if changed is None:
            return rules.is_repeat(task, change)
        self._write(changed, without_event=changed.status is Status.RUNNING, log=change.log)
        return True

    def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return [self._delete(task_id) for task_id in ids]

    def _delete(self, task_id: str) -> bool:
        task = self.tasks.get(task_id)
        if task is None or task.status not in FINISHED:
            return False
        self._remove(task)
        self._drop_follower(task_id)
        return True

    def _drop_follower(self, task_id: str) -> None:
        self._followers = {first: last for first, last in self._followers.items() if last != task_id}

    def get(self, ids: Sequence[str]) -> list[Task | None]:
        return [self.tasks.get(task_id) for task_id in ids]

    def find(self, where: Filter, limit: int, start: Position | None, now: float) -> list[Task]:
        matches = where.matcher(now)
        found = (task for task in self.tasks.values() if (start is None or _position(task) < start) and matches(task))
        return nlargest(limit, found, key=_position)

    def count(self, batch: str | None = None) -> Counts:
        tasks = self.tasks.values()
        return dict(Counter(count_key(task) for task in tasks if batch is None or task.batch == batch))

    def history(self, task_id: str) -> list[Event]:
        return list(self._events.get(task_id, ()))

    def read_note(self, name: str) -> Note | None:
        return self._notes.get(name)

    def write_note(self, name: str, data: bytes, expected: str) -> str:
        stored = self._notes.get(name)
        if expected not in {ANY, stored.version if stored else NEW}:
            raise Conflict(f"note {name!r} was written by another process")
        self._notes[name] = Note(name, data, self._new_note_version())
        return self._notes[name].version

    def _new_note_version(self) -> str:
        return str(next(self._note_versions))

    def notes(self, prefix: str) -> list[Note]:
        return [self._notes[name] for name in sorted(self._notes) if name.startswith(prefix)]

    def drop_note(self, name: str) -> None:
        self._notes.pop(name, None)

    def _write(self, task: Task, *, without_event: bool = False, log: str | None = None) -> None:
        self.tasks[task.id] = task
        if not without_event:
            self._events.setdefault(task.id, []).append(event_of(task, log))

    def _remove(self, task: Task) -> None:
        del self.tasks[task.id]
        self._events.pop(task.id, None)


def count_key(task: Task) -> CountKey:
    return CountKey(task.queue, task.type, task.status, task.priority)


def _position(task: Task) -> Position:
    return Position(task.created_at, task.id)


def _is_leased_under(task: Task, lease_id: str) -> bool:
    return task.status is Status.RUNNING and task.lease_id == lease_id
