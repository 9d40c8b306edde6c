"""Drafts of cold segments: which tasks become one, what it contains, and whether the tables agree with it."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from typing import Any

import apsw
import msgspec

from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.migrations import migrate
from qo.sqlite_tables.patchsets import ChangeRecorder, PatchsetRefused, apply_patchset
from qo.sqlite_tables.rows import BY_N, encode_list, read_tasks
from qo.sqlite_tables.segments import (
    CONTENT,
    ColdSegment,
    SegmentDraft,
    are_finished,
    are_ready,
    id_hash,
    read_states,
)
from qo.sqlite_tables.statements import SQL

_MAX_SKIPPED_RANKS = 16  # of which more tasks exist than fit into a segment
_numbers = msgspec.json.Decoder(list[int])


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
        states = read_states(db, encoded)
    if len(tasks) < len(numbers) or not (are_ready(states) or are_finished(states)):
        return None
    created = [row["created_at"] for row in tasks]
    is_ready = are_ready(states)
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


# --- the tasks of a segment


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
            apply_patchset(db, body, ("lanes", *CONTENT))
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
    for table in ("lanes", *CONTENT):
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
