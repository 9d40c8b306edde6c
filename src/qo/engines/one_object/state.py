"""The queue as a value: what the object says, kept decoded and indexed, and as bytes again."""

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

from qo.checksum import sealed, unsealed
from qo.damage import check_known_format, check_stored, encode_damage, note_name
from qo.engines.one_object.record import (
    FORMAT,
    ObjectHeader,
    Record,
    StoredNote,
    UnknownParts,
    check_head,
    decode_head,
    decode_record,
    encode_object,
    encode_record,
    grown,
    id_in,
    salvage,
    unknown_parts,
)
from qo.engines.ready_tasks import ReadyTasks
from qo.errors import Conflict
from qo.ids import new_token as new_write_id
from qo.model import (
    ANY,
    FINISHED,
    NEW,
    Added,
    Change,
    ClaimRequest,
    CountKey,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Position,
    Status,
    Task,
    admit,
    apply,
    check_distinct,
    claim,
    in_order,
    is_repeat,
    lane_of,
    stamps,
)

REMEMBERED = 64  # write ids: so many others may write before we read back


class State:
    """The engine's operations on the object's content. Told what time it is; nothing here waits."""

    def __init__(self, data: bytes = b"", known: "State | None" = None, *, place: str = "the object") -> None:
        text, head, damaged = _parts(data) if data else (b"", ObjectHeader(format=FORMAT, version=0, writes=()), [])
        self.version, self.writes = head.version, head.writes
        self._format = check_head(place, head)
        self._unknown = unknown_parts(text, head) if data else UnknownParts({}, {})
        self.is_changed = False
        self.damage: dict[str, str] = {}  # tasks of the object that could not be read, and why
        self._encoded: dict[str, bytes] = {}
        self._records: dict[str, Record] = {}
        self._notes = {note.name: note for note in head.notes}
        self._followers = dict(head.followers)
        self._counts: Counter[CountKey] = Counter()
        self._ready = ReadyTasks(self._task)
        self._load([bytes(raw) for raw in head.tasks], known)
        for damaged_text in damaged:
            self._set_aside(damaged_text, ValueError("its checksum is not that of its bytes"))

    def _load(self, encoded: list[bytes], known: "State | None") -> None:
        """What another broker left unchanged is not decoded again."""
        decoded = known.decoded() if known else {}
        for text in encoded:
            data, record = decoded.get(text) or (b"", None)
            if record is None:
                try:
                    data, record = sealed(text), decode_record(text)
                    check_stored(record.task)
                except ValueError as error:
                    check_known_format(self._format.format, FORMAT, error)
                    self._set_aside(text, error)
                    continue
            self._encoded[record.task.id], self._records[record.task.id] = data, record
            self._counts[_lane(record.task)] += 1
            self._ready.join(record.task)

    def _set_aside(self, data: bytes, error: ValueError) -> None:
        """Keep the bytes of a task that cannot be read as a note; the next write takes it out of the tasks."""
        task_id = id_in(data)
        name = note_name(task_id)
        if name not in self._notes:
            note = encode_damage(task_id, f"its part of the object does not decode: {error}", data)
            self._notes[name] = StoredNote(name=name, data=note, version=new_write_id())
        self.damage[task_id] = str(error)
        self.is_changed = True

    def decoded(self) -> dict[bytes, tuple[bytes, Record]]:
        """By the text of a task: the same with its checksum, and decoded."""
        return {unsealed(data): (data, self._records[task_id]) for task_id, data in self._encoded.items()}

    def encode(self) -> tuple[bytes, str]:
        """As bytes to be written, and the id of that write."""
        write = new_write_id()
        self.writes = (*self.writes, write)[-REMEMBERED:]
        self.version += 1
        head = ObjectHeader(
            format=self._format.format,
            since=self._format.since,
            qo=self._format.qo,
            version=self.version,
            writes=self.writes,
            notes=tuple(self._notes.values()),
            followers=self._followers,
        )
        self.is_changed = False
        return encode_object(head, self._encoded.values(), self._unknown), write

    def _task(self, task_id: str) -> Task | None:
        record = self._records.get(task_id)
        return None if record is None else record.task

    def _write(self, task: Task, *, quietly: bool = False) -> None:
        before = self._records.get(task.id)
        record = grown(before, task, quietly=quietly)
        self._encoded[task.id] = encode_record(
            record, self._encoded.get(task.id)
        )  # first: what cannot be written must leave no trace
        self._records[task.id] = record
        if before is not None:
            self._counts[_lane(before.task)] -= 1
        self._counts[_lane(task)] += 1
        self._ready.join(task)
        self.is_changed = True

    # --- writing

    def add(self, tasks: Sequence[NewTask], now: float) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return [self._add(task, at, now - at) for task, at in zip(tasks, stamps(now, len(tasks)), strict=True)]

    def _add(self, new: NewTask, now: float, lead: float) -> Added:
        last = new.id if new.idempotency_key is None else self._followers.get(new.id, new.id)
        if note_name(last) in self._notes and last not in self._records:
            return Added(last, new=False)  # set aside
        last = last if last in self._records else new.id  # a page may have deleted it
        task = admit(self._task(last), new, now, lead=lead)
        if task is None or task.id in self._records:  # this very submission made it, in an earlier try
            return Added(last, new=False)
        self._write(task)
        if task.id != new.id:
            self._followers[new.id] = task.id
        return Added(task.id, new=True)

    def claim(self, request: ClaimRequest, now: float) -> list[Task]:
        if request.is_repeat and (mine := self._held_under(request.lease_id)):
            return in_order(mine, now, lane_of)
        claimed = [claim(task, request, now) for task in self._ready.take(request, now)]
        for task in claimed:
            self._write(task)
        return claimed

    def _held_under(self, lease_id: str) -> list[Task]:
        tasks = (record.task for record in self._records.values())
        return [task for task in tasks if task.status is Status.RUNNING and task.lease_id == lease_id]

    def apply(self, changes: Sequence[Change], now: float) -> list[bool]:
        check_distinct(change.id for change in changes)
        return [self._apply(change, now) for change in changes]

    def _apply(self, change: Change, now: float) -> bool:
        task = self._task(change.id)
        if task is None:
            return False
        changed = apply(task, change, now)
        if changed is None:
            return is_repeat(task, change)
        self._write(changed, quietly=changed.status is Status.RUNNING)
        return True

    def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return [self._delete(task_id) for task_id in ids]

    def _delete(self, task_id: str) -> bool:
        task = self._task(task_id)
        if task is None and self._notes.pop(note_name(task_id), None) is not None:  # damaged, and set aside
            self.is_changed = True
            return True
        if task is None or task.status not in FINISHED:
            return False
        self._counts[_lane(task)] -= 1
        del self._records[task_id], self._encoded[task_id]
        if self._followers:
            self._followers = {first: last for first, last in self._followers.items() if last != task_id}
        self.is_changed = True
        return True

    # --- reading

    def get(self, ids: Sequence[str]) -> list[Task | None]:
        return [self._task(task_id) for task_id in ids]

    def find(self, where: Filter, *, limit: int, start: Position | None, now: float) -> list[Task]:
        matches = where.matcher(now)
        tasks = (record.task for record in self._records.values())
        fitting = (task for task in tasks if (start is None or _place(task) < start) and matches(task))
        return nlargest(limit, fitting, key=_place)

    def count(self) -> Counts:
        return {lane: number for lane, number in self._counts.items() if number}

    def history(self, task_id: str) -> list[Event]:
        record = self._records.get(task_id)
        return [] if record is None else [step.event() for step in record.events]

    def has_something_for(self, request: ClaimRequest, now: float) -> bool:
        return self._ready.has(request, now)

    def next_at(self) -> float | None:
        return self._ready.next_at()

    # --- notes

    def read_note(self, name: str) -> Note | None:
        note = self._notes.get(name)
        return None if note is None else Note(note.name, note.data, note.version)

    def write_note(self, name: str, data: bytes, expected: str) -> str:
        stored = self._notes.get(name)
        if expected not in {ANY, stored.version if stored else NEW}:
            raise Conflict(f"note {name!r} was written by someone else")
        version = new_write_id()  # none that was dropped ever comes back
        self._notes[name] = StoredNote(name=name, data=data, version=version)
        self.is_changed = True
        return version

    def notes(self, prefix: str) -> list[Note]:
        found = (self._notes[name] for name in sorted(self._notes) if name.startswith(prefix))
        return [Note(note.name, note.data, note.version) for note in found]

    def drop_note(self, name: str) -> None:
        if self._notes.pop(name, None) is not None:
            self.is_changed = True


def _parts(data: bytes) -> tuple[bytes, ObjectHeader, list[bytes]]:
    """The object as text and decoded, and the text of tasks that are damaged. Raises ValueError."""
    try:
        return data, decode_head(data), []
    except ValueError:
        return salvage(data)


def _place(task: Task) -> Position:
    return Position(task.created_at, task.id)


def _lane(task: Task) -> CountKey:
    return CountKey(task.queue, task.type, task.status, task.priority)
