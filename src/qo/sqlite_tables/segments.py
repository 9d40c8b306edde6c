"""Cold segments: tasks that were moved from the tables of a log into an object, and what the tables know about them.

A segment contains whole tasks with their events. It never changes. The tables keep one row for it, the hashes of its
ids, and its counts. A call that needs a task of a segment raises `SegmentNeeded`; the engine moves the tasks back into
the tables and repeats the call.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from itertools import accumulate, islice
from typing import Any, NamedTuple

import apsw
import msgspec
from msgspec import Struct

from qo.model import FINISHED
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.patchsets import ChangeRecorder, PatchsetRefused, apply_patchset
from qo.sqlite_tables.rows import BY_N, PENDING, encode_list, read_tasks
from qo.sqlite_tables.statements import SQL, write_rows

_SEGMENT = "n, object, tasks, last, oldest, newest, finished_at, lane, rank"
_MAX_SKIPPED_RANKS = 16  # of which more tasks exist than fit into a segment
_CONTENT = ("tasks", "events")  # the tables whose rows return with a segment; lanes never left
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


# --- which tasks become segments


def deep_tasks(
    db: apsw.Connection, *, hot: int, kept: int, size: int, max_bytes: int, segments: int
) -> list[list[int]]:
    """Ready tasks of lanes that have more than `hot` in the tables, after their first `kept` ones.

    They are for this many segments at most. A lane keeps more than `hot` only if the rest does not fill a segment.
    """
    found: list[list[int]] = []
    with db:  # one snapshot
        lanes: list[Any] = db.execute(SQL["deep_lanes"], (hot,)).fetchall()
        for lane, surplus in lanes:
            after = db.execute(SQL["rank_at"], (lane, kept - 1)).get if kept > 0 else float("-inf")
            moved = 0
            while after is not None and moved < surplus and len(found) < segments:
                chosen, after = _deep_in_lane(db, lane, after, size, max_bytes)
                found += [chosen] if chosen else []
                moved += len(chosen)
    return found


def _deep_in_lane(
    db: apsw.Connection, lane: int, after: Any, size: int, max_bytes: int
) -> tuple[list[int], float | None]:
    """Tasks of a lane for one segment, with ranks above `after`, and their highest rank; None if there are too few.

    Tasks of equal rank stay together, because the row of a segment does not show which of them go first: a claim would
    have to read every segment that has some of them. More of them than fit into a segment stay in the tables.
    """
    for _ in range(_MAX_SKIPPED_RANKS):
        rows: list[Any] = db.execute(SQL["deep_tasks"], (lane, after, size + 1)).fetchall()
        totals = accumulate(stored for _, stored, _ in rows)
        fitting = sum(total <= max_bytes for total in islice(totals, 1, size)) + 1 if rows else 0
        if fitting == len(rows):
            return ([n for n, _, _ in rows], rows[-1][2]) if fitting == size else ([], None)
        after = rows[fitting][2]  # of the first task that does not fit
        whole = [row for row in rows[:fitting] if row[2] < after]
        if 2 * len(whole) >= fitting:
            return [n for n, _, _ in whole], whole[-1][2]
    return [], None


def old_tasks(db: apsw.Connection, *, before: float, size: int, max_bytes: int, segments: int) -> list[list[int]]:
    """Finished tasks that have not changed since `before`, the oldest first, for this many segments at most."""
    rows = db.execute(SQL["old_tasks"], (before, size * segments)).fetchall()
    return _whole(rows, size, max_bytes)[:segments]


def _whole(rows: Sequence[tuple[Any, ...]], size: int, max_bytes: int) -> list[list[int]]:
    """The numbers of tasks for each segment. The last ones are omitted if they are too few for one."""
    found, chosen, total = list[list[int]](), list[int](), 0
    for n, stored in rows:
        if chosen and total + stored > max_bytes:
            found.append(chosen)
            chosen, total = [], 0
        chosen.append(n)
        total += stored
        if len(chosen) == size:
            found.append(chosen)
            chosen, total = [], 0
    return found


def fixed(numbers: Sequence[int]) -> Callable[[apsw.Connection], Sequence[int]]:
    """The choice of these tasks, for `draft_segment`."""
    return lambda _: numbers


def draft_segment(db: apsw.Connection, choose: Callable[[apsw.Connection], Sequence[int]]) -> SegmentDraft | None:
    """Read the tasks of a new segment. They are chosen and read in one snapshot. Raises DamageFound.

    None if none are chosen, or if they may not be in one segment: all must be ready, new and of one lane, or finished.
    """
    with db:
        numbers = choose(db)
        if not numbers:
            return None
        encoded = encode_list(numbers)
        read_tasks(db, BY_N, numbers, SqliteLanes(db))  # a damaged task stays where it can be set aside
        tasks = _select(db, "tasks", "n IN (SELECT value FROM json_each(?))", encoded)
        events = _select(db, "events", "n IN (SELECT value FROM json_each(?))", encoded)
        lanes = _select(
            db, "lanes", "n IN (SELECT lane FROM tasks WHERE n IN (SELECT value FROM json_each(?)))", encoded
        )
        states = _read_states(db, encoded)
    if len(tasks) < len(numbers) or not (_are_ready(states) or _are_finished(states)):
        return None
    created = [row["created_at"] for row in tasks]
    is_ready = _are_ready(states)
    return SegmentDraft(
        body=_patchset({"lanes": lanes, "tasks": tasks, "events": events}),
        states=states,
        hashes=tuple(id_hash(row["id"]) for row in tasks),
        counts=dict(Counter((row["lane"], row["status"], row["batch"] or "") for row in tasks)),
        last=max(row["n"] for row in tasks),
        oldest=min(created),
        newest=max(created),
        finished_at=min((row["completed_at"] for row in tasks if row["completed_at"] is not None), default=None),
        lane=tasks[0]["lane"] if is_ready else None,
        rank=min(row["rank"] for row in tasks) if is_ready else None,
    )


def _read_states(db: apsw.Connection, numbers: str) -> frozenset[TaskState]:
    return frozenset(_states.decode(db.execute(SQL["states"], (numbers,)).get))


def _are_ready(states: Collection[TaskState]) -> bool:
    """Whether claims find all these tasks by one lane and the lowest rank."""
    are_new = all((state.status, state.ready, state.tries) == (PENDING, 1, 0) for state in states)
    return are_new and len({state.lane for state in states}) == 1


def _are_finished(states: Collection[TaskState]) -> bool:
    return all(state.status in _FINISHED_STATUSES for state in states)


def _select(db: apsw.Connection, table: str, where: str, numbers: str) -> list[dict[str, Any]]:
    names = [str(name) for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
    rows = db.execute(f"SELECT {', '.join(names)} FROM {table} WHERE {where}", (numbers,))  # noqa: S608 - constant names
    return [dict(zip(names, row, strict=True)) for row in rows]


def _patchset(tables: dict[str, list[dict[str, Any]]]) -> bytes:
    db = new_tables()
    try:
        recorder = ChangeRecorder(db)
        recorder.start()
        with db:
            for table, rows in tables.items():
                if rows:
                    names, marks = ", ".join(rows[0]), ", ".join("?" * len(rows[0]))
                    insert = f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - names of our own columns
                    db.executemany(insert, [(*row.values(),) for row in rows])
        return recorder.take()
    finally:
        db.close()


def new_tables() -> apsw.Connection:
    """Empty tables in memory."""
    db = apsw.Connection(":memory:")
    migrate(db, "memory")
    return db


def open_segment(body: bytes) -> apsw.Connection:
    """A segment's tasks in separate tables. Raises PatchsetRefused."""
    db = new_tables()
    try:
        with db:
            _widen(db, body)
            apply_patchset(db, body, ("lanes", *_CONTENT))
    except apsw.Error as error:
        db.close()
        raise PatchsetRefused(f"a patchset cannot be read: {error}") from error
    except BaseException:
        db.close()
        raise
    return db


def _widen(db: apsw.Connection, body: bytes) -> None:
    """Add columns that a newer build has written: SQLite skips rows that have more columns than their table."""
    sizes = {change.name: change.column_count for change in apsw.Changeset.iter(body)}
    for table in ("lanes", *_CONTENT):
        known: int = db.execute("SELECT count(*) FROM pragma_table_info(?)", (table,)).get
        for number in range(known, sizes.get(table, 0)):
            db.execute(f"ALTER TABLE {table} ADD COLUMN unknown_{number}")


def divided(body: bytes) -> list[SegmentDraft]:
    """The tasks of a segment in two. Empty if it has only one. Raises PatchsetRefused."""
    db = open_segment(body)
    try:
        numbers = _numbers.decode(db.execute(SQL["numbers_by_rank"]).get)
        middle = len(numbers) // 2
        halves = [draft_segment(db, fixed(part)) for part in (numbers[:middle], numbers[middle:])]
        return [half for half in halves if half is not None] if None not in halves else []
    finally:
        db.close()


def segment_problem(db: apsw.Connection, segment: ColdSegment, body: bytes) -> str:
    """Where the tables and a segment disagree; empty if they agree. Raises PatchsetRefused, or DamageFound."""
    opened = open_segment(body)
    try:
        numbers = _numbers.decode(opened.execute(SQL["numbers_by_rank"]).get)
        draft = draft_segment(opened, fixed(numbers))
    finally:
        opened.close()
    if draft is None:
        return "its tasks are neither ready tasks of one lane nor finished"
    stored = {(lane, status, batch): n for lane, status, batch, n in db.execute(SQL["counts_of_segment"], (segment.n,))}
    hashes = {value for (value,) in db.execute("SELECT hash FROM cold_ids WHERE segment = ?", (segment.n,))}
    row = len(numbers), draft.last, draft.oldest, draft.newest, draft.finished_at, draft.lane, draft.rank
    ids = encode_list([state.id for state in draft.states])
    checks = {
        "its row does not agree with its tasks": row == segment[2:],
        "its counts do not agree with its tasks": stored == draft.counts,
        "the hashes of its ids are not in the tables": hashes == {*draft.hashes},
        "some of its tasks are in the tables too": not db.execute(SQL["stored_too"], (encode_list(numbers), ids)).get,
    }
    return "; ".join(problem for problem, is_right in checks.items() if not is_right)


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
        states = _read_states(self._db, numbers)
        if states != draft.states or not (_are_finished(states) if draft.lane is None else _are_ready(states)):
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
        apply_patchset(self._db, loaded.body, _CONTENT, others=("lanes",))
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
