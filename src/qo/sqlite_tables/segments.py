"""Cold segments: tasks that were moved from the tables of a log into an object, and what the tables know about them.

A segment contains whole tasks with their events. It never changes. The tables keep one row for it, the hashes of its
ids, and its counts. A call that needs a task of a segment raises `SegmentNeeded`; the engine moves the tasks back into
the tables and repeats the call.
"""

from collections.abc import Collection, Sequence
from hashlib import blake2b
from typing import NamedTuple

import apsw
import msgspec
from msgspec import Struct

from qo.model import FINISHED
from qo.sqlite_tables.patchsets import apply_patchset
from qo.sqlite_tables.rows import PENDING, encode_list
from qo.sqlite_tables.statements import SQL, write_rows

_SEGMENT = "n, object, tasks, last, oldest, newest, finished_at, lane, rank"
CONTENT = ("tasks", "events")  # the tables whose rows return with a segment; lanes never left
_numbers = msgspec.json.Decoder(list[int])
_FINISHED_STATUSES = frozenset(status.value for status in FINISHED)


class SegmentNeeded(Exception):
    """A call needs tasks of these segments. It has changed nothing, or is rolled back."""

    def __init__(self, numbers: Sequence[int]) -> None:
        super().__init__(f"the tasks of the segments {[*numbers]} are needed")
        self.numbers = numbers


class ColdSegment(NamedTuple):
    """The row of a segment."""

    n: int
    object: str
    tasks: int
    last: int
    oldest: float
    newest: float
    finished_at: float | None
    lane: int | None
    rank: float | None


class LoadedSegment(NamedTuple):
    """A segment whose object was read."""

    segment: ColdSegment
    body: bytes
    ids: Sequence[str]


class TaskState(NamedTuple):
    """What must be the same when a task is read and when it is moved. Numbers of deleted tasks are used again."""

    n: int
    id: str
    lane: int
    version: int
    status: str
    ready: int | None
    tries: int  # attempts and failures


_states = msgspec.json.Decoder(list[TaskState])


class SegmentDraft(Struct, frozen=True, kw_only=True):
    """Tasks that may become a segment, as they were when they were read."""

    body: bytes  # a patchset that inserts the tasks, their events and their lanes
    states: frozenset[TaskState]
    hashes: tuple[int, ...]
    counts: dict[tuple[int, str, str], int]  # by lane, status and batch
    last: int
    oldest: float
    newest: float
    finished_at: float | None
    lane: int | None  # of ready tasks
    rank: float | None


def id_hash(task_id: str) -> int:
    return int.from_bytes(blake2b(task_id.encode(), digest_size=8).digest(), "big", signed=True)


def segments_with(db: apsw.Connection, ids: Collection[str]) -> list[int]:
    """The segments that may contain these ids."""
    return _numbers.decode(db.execute(SQL["segments_with"], (encode_list([*map(id_hash, ids)]),)).get) if ids else []


def read_segments(db: apsw.Connection, numbers: Sequence[int] | None = None) -> list[ColdSegment]:
    """The rows of these segments that exist, or of all."""
    if numbers is None:
        return [ColdSegment(*row) for row in db.execute(f"SELECT {_SEGMENT} FROM segments")]  # noqa: S608 - constant names
    sql = f"SELECT {_SEGMENT} FROM segments WHERE n IN (SELECT value FROM json_each(?))"  # noqa: S608
    return [ColdSegment(*row) for row in db.execute(sql, (encode_list(numbers),))]


def read_states(db: apsw.Connection, numbers: str) -> frozenset[TaskState]:
    """The states of the tasks with these numbers, a JSON list."""
    return frozenset(_states.decode(db.execute(SQL["states"], (numbers,)).get))


def are_ready(states: Collection[TaskState]) -> bool:
    """Whether claims find all these tasks by one lane and the lowest rank."""
    are_new = all((state.status, state.ready, state.tries) == (PENDING, 1, 0) for state in states)
    return are_new and len({state.lane for state in states}) == 1


def are_finished(states: Collection[TaskState]) -> bool:
    return all(state.status in _FINISHED_STATUSES for state in states)


def ids_of(body: bytes) -> list[str]:
    """The ids of a segment's tasks. Raises ValueError if the body inserts no tasks."""
    return [str(change.new[1]) for change in apsw.Changeset.iter(body) if change.name == "tasks" and change.new]


# --- moving


class SegmentTransaction:
    """Moves tasks out of the tables and back. One for each connection; used inside a transaction."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self.may_exist = False  # False: there are no segments
        self.unreadable: frozenset[str] = frozenset()  # objects that are damaged or missing: claims pass over them

    def require(self, ids: Collection[str]) -> None:
        """Raise SegmentNeeded if one of these ids, which are not in the tables, may be in a segment."""
        if self.may_exist and (found := segments_with(self._db, ids)):
            raise SegmentNeeded(found)

    def freeze(self, draft: SegmentDraft, name: str) -> bool:
        """Replace tasks by the segment that contains them. False, without a change, if one of them has changed."""
        numbers = encode_list([state.n for state in draft.states])
        states = read_states(self._db, numbers)
        if states != draft.states or not (are_finished(states) if draft.lane is None else are_ready(states)):
            return False
        self._add(draft, name)
        self._db.execute(SQL["delete_events"], (numbers,))
        self._db.execute(SQL["delete"], (numbers,))
        self.may_exist = True
        return True

    def _add(self, draft: SegmentDraft, name: str) -> None:
        values = draft.last, draft.oldest, draft.newest, draft.finished_at, draft.lane, draft.rank
        segment: int = self._db.execute(SQL["add_segment"], (name, len(draft.states), *values)).get
        write_rows(self._db, "remember_ids", [(value, segment) for value in dict.fromkeys(draft.hashes)])
        write_rows(self._db, "count_cold", [(segment, *key, count) for key, count in draft.counts.items()])

    def thaw(self, loaded: LoadedSegment) -> bool:
        """Move the tasks of a segment back into the tables. False if another process has done so."""
        if not self._is_listed(loaded.segment):
            return False
        apply_patchset(self._db, loaded.body, CONTENT, others=("lanes",))
        self._remove(loaded)
        return True

    def divide(self, loaded: LoadedSegment, parts: Sequence[tuple[SegmentDraft, str]]) -> bool:
        """Replace a segment by others with the same tasks, and their names. False if it is not in the tables."""
        if not self._is_listed(loaded.segment):
            return False
        self._remove(loaded)
        for draft, name in parts:
            self._add(draft, name)
        return True

    def _is_listed(self, segment: ColdSegment) -> bool:
        return any(row.object == segment.object for row in read_segments(self._db, [segment.n]))

    def _remove(self, loaded: LoadedSegment) -> None:
        number = loaded.segment.n
        self._db.execute(SQL["forget_ids"], (number, encode_list([*map(id_hash, loaded.ids)])))
        self._db.execute("DELETE FROM cold_counts WHERE segment = ?", (number,))
        self._db.execute("DELETE FROM segments WHERE n = ?", (number,))
