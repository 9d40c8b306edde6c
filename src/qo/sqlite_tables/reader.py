"""Reads on a separate connection, so that they never wait for a commit."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import apsw
import msgspec

from qo.model import (
    BLOCKED_AT,
    FINISHED,
    CountKey,
    Counts,
    Event,
    Filter,
    Note,
    PendingKind,
    Position,
    Status,
    Task,
    event_of,
    in_order,
    lane_of,
)
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.rows import BY_ID, BY_N, STATUS, UNINDEXED, encode_list, read_tasks
from qo.sqlite_tables.segments import ColdSegment, read_segments, segments_with
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.unindexed import UnindexedTasks

_MANY_COMING = 20_000  # below this, the same for tasks that are not due
_numbers = msgspec.json.Decoder(list[int])
_MANY_PENDING = 1000  # below this, gathering and sorting pending tasks is faster than scanning all tasks


_KINDS = {
    PendingKind.READY: "available_at <= ?",
    PendingKind.SCHEDULED: f"(available_at > ? AND available_at <> {BLOCKED_AT!r} AND failures = 0)",
    PendingKind.RETRYING: f"(available_at > ? AND available_at <> {BLOCKED_AT!r} AND failures > 0)",
    PendingKind.BLOCKED: f"(available_at > ? AND available_at = {BLOCKED_AT!r})",
}


class _SqliteBranch(NamedTuple):
    """One branch of a query: an index and a condition."""

    by: str | None  # the index of `tasks`; None: the table `unindexed`
    test: str
    values: tuple[Any, ...] = ()


def _count(rows: Iterable[tuple[Any, ...]]) -> Counts:
    return {
        CountKey(queue, type_, STATUS[status], priority): n
        for queue, type_, status, priority, n in rows
        if status in STATUS
    }


class SqliteReader:
    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._lanes = SqliteLanes(db)
        self._unindexed = UnindexedTasks(db)

    def get(self, ids: Sequence[str]) -> list[Task | None]:
        with self._db:  # one snapshot for tasks and lanes: a lane is removed with its last task
            tasks = read_tasks(self._db, BY_ID, list(ids), self._lanes).values()
            found = {task.id: task for task in tasks}
            missing = [task_id for task_id in ids if task_id not in found]
            found |= {task.id: task for task in self._unindexed.get(missing, self._lanes)}
        return [found.get(task_id) for task_id in ids]

    def leased_under(self, lease_id: str, now: float) -> list[Task]:
        """The tasks that a claim has leased, in order."""
        with self._db:
            numbers = _numbers.decode(self._db.execute(SQL["held_under"], (lease_id,)).get)
            tasks = read_tasks(self._db, BY_N, numbers, self._lanes).values()
        return in_order(tasks, now, lane_of)

    def find(self, where: Filter, limit: int, start: Position | None, now: float) -> list[Task]:
        if not where.possible_statuses:
            return []
        with self._db:  # one snapshot for both queries
            sql, values = self.query(where, limit, start, now)
            numbers = [n for (n,) in self._db.execute(sql, values)]
            tasks = [*read_tasks(self._db, BY_N, [n for n in numbers if n > 0], self._lanes).values()]
            tasks += self._unindexed.read([n for n in numbers if n < 0], self._lanes)
        return sorted(tasks, key=lambda task: (task.created_at, task.id), reverse=True)

    # --- with the segments that may contain more, in the same snapshot

    def get_and_segments(self, ids: Sequence[str]) -> tuple[list[Task | None], list[ColdSegment]]:
        with self._db:
            found = self.get(ids)
            missing = [task_id for task_id, task in zip(ids, found, strict=True) if task is None]
            segments = self._segments_with(missing)
        return found, segments

    def history_and_segments(self, task_id: str) -> tuple[list[Event], list[ColdSegment]]:
        with self._db:
            events = self.history(task_id)
            segments = [] if events else self._segments_with([task_id])
        return events, segments

    def find_and_segments(
        self, where: Filter, limit: int, start: Position | None, now: float
    ) -> tuple[list[Task], list[ColdSegment]]:
        with self._db:
            found = self.find(where, limit, start, now)
            segments = self._matching_segments(where, start, now)
        return found, segments

    def segments(self) -> list[ColdSegment]:
        return read_segments(self._db)

    def _segments_with(self, ids: Sequence[str]) -> list[ColdSegment]:
        numbers = segments_with(self._db, ids)
        return read_segments(self._db, numbers) if numbers else []

    def _matching_segments(self, where: Filter, start: Position | None, now: float) -> list[ColdSegment]:
        """The segments that may contain tasks of a page, according to the tables."""
        statuses = {status for status in where.possible_statuses if status is not Status.RUNNING}
        if where.retrying or (where.pending and PendingKind.READY not in where.pending):
            statuses.discard(Status.PENDING)  # segments contain pending tasks that are due and never ran
        if not statuses or not (every := read_segments(self._db)):
            return []
        tests, values = ["status IN (SELECT value FROM json_each(?))"], [encode_list(sorted(statuses))]
        if where.queues or where.types:
            covers = where.lane_matcher()
            lanes = self._lanes.where(lambda lane: covers(lane.queue, lane.type))
            tests.append("lane IN (SELECT value FROM json_each(?))")
            values.append(encode_list(sorted(lanes)))
        if where.batch is not None:
            tests.append("batch = ?")
            values.append(where.batch)
        test = " AND ".join(tests)
        matching = {n for (n,) in self._db.execute(f"SELECT segment FROM cold_counts WHERE {test}", values)}  # noqa: S608 - constant names
        before = None if where.finished_for is None else now - where.finished_for
        return [
            segment
            for segment in every
            if segment.n in matching
            and (start is None or segment.oldest <= start[0])
            and (before is None or (segment.finished_at is not None and segment.finished_at <= before))
        ]

    def query(self, where: Filter, limit: int, start: Position | None, now: float) -> tuple[str, tuple[Any, ...]]:
        """The query for the numbers of one page. It merges branches that each read an index, newest first."""
        narrow, narrowing = self._narrow(where, start, now)
        parts, values = list[str](), list[Any]()
        for branch in self._branches(where):
            table = UNINDEXED if branch.by is None else f"tasks INDEXED BY {branch.by}"
            parts.append(
                f"SELECT n, created_at, id FROM {table} WHERE {branch.test}{narrow}"  # noqa: S608 - constant names
            )
            values += [*branch.values, *narrowing]
        branches = " UNION ALL ".join(parts)
        return f"SELECT n FROM ({branches} ORDER BY created_at DESC, id DESC LIMIT ?)", (*values, max(limit, 0))  # noqa: S608

    def _narrow(self, where: Filter, start: Position | None, now: float) -> tuple[str, list[Any]]:
        tests: list[tuple[str, Any]] = []
        if where.queues or where.types:
            covers = where.lane_matcher()
            lanes = self._lanes.where(lambda lane: covers(lane.queue, lane.type))
            tests.append(("lane IN (SELECT value FROM json_each(?))", (encode_list(sorted(lanes)),)))
        if where.worker_id is not None:
            tests.append(("worker_id = ?", (where.worker_id,)))
        if where.expired_for is not None:
            tests.append(("lease_expires_at <= ?", (now - where.expired_for,)))
        if where.finished_for is not None:
            # A task ends after it is created. Without this condition, the query would scan the newest tasks first.
            before = now - where.finished_for
            tests.append(("completed_at <= ? AND created_at <= ?", (before, before)))
        if where.shards:
            tests.append(("substr(id, 1, 1) IN (SELECT value FROM json_each(?))", (encode_list(where.shards),)))
        if where.retrying is not None:
            tests.append(("(status <> 'pending' OR (failures > 0) = ?)", (int(where.retrying),)))
        if where.pending:
            kinds = " OR ".join(_KINDS[kind] for kind in where.pending)
            tests.append((f"(status <> 'pending' OR {kinds})", (now,) * len(where.pending)))
        if start is not None:
            tests.append(("(created_at, id) < (?, ?)", start))
        return "".join(f" AND {test}" for test, _ in tests), [value for _, values in tests for value in values]

    def _branches(self, where: Filter) -> list[_SqliteBranch]:
        statuses = where.possible_statuses
        if where.batch is not None:
            values = where.batch, encode_list(sorted(statuses))
            test = "batch = ? AND status IN (SELECT value FROM json_each(?))"
            return [_SqliteBranch("tasks_batched", test, values), *self._unindexed_branch(test, values)]
        is_coming = bool(where.pending) and PendingKind.READY not in where.pending
        if Status.PENDING in statuses and (len(statuses) == len(Status) or self._has_many(is_coming=is_coming)):
            listed = encode_list(sorted(statuses))
            test = "status IN (SELECT value FROM json_each(?))"
            return [_SqliteBranch("tasks_listed", test, (listed,)), *self._unindexed_branch()]
        branches = [
            _SqliteBranch("tasks_finished", "status = ? AND completed_at IS NOT NULL", (status.value,))
            for status in sorted(statuses & FINISHED)
        ]
        if Status.PENDING in statuses:
            branches += [] if is_coming else [_SqliteBranch("tasks_ready", "ready = 1")]
            branches += [_SqliteBranch("tasks_coming", "ready = 0"), *self._unindexed_branch()]
        if Status.RUNNING in statuses:
            branches.append(_SqliteBranch("tasks_leased", "status = 'running'"))
        return branches

    def _unindexed_branch(self, test: str = "true", values: tuple[Any, ...] = ()) -> list[_SqliteBranch]:
        """A branch for tasks that no index lists yet, if there are any."""
        return [_SqliteBranch(None, test, values)] if self._unindexed.exist() else []

    def _has_many(self, *, is_coming: bool) -> bool:
        """Whether there are too many pending tasks, or too many that are not due, to sort them."""
        if is_coming:
            return bool(self._db.execute(SQL["some_coming"], (_MANY_COMING + 1,)).get > _MANY_COMING)
        return (self._db.execute("SELECT sum(count) FROM tally WHERE status = 'pending'").get or 0) > _MANY_PENDING

    def count(self, batch: str | None = None) -> Counts:
        with self._db:  # one snapshot for all queries
            indexed = (SQL["counts"], ()) if batch is None else (SQL["counts_of_batch"], (batch,))
            counts = _count(self._db.execute(*indexed))
            more = _count(self._db.execute(SQL["counts_unindexed"], (batch,))) if self._unindexed.exist() else {}
        return counts | {key: counts.get(key, 0) + n for key, n in more.items()}

    def history(self, task_id: str) -> list[Event]:
        with self._db:  # one snapshot for both tables
            events = self._events(task_id)
            unindexed = [] if events else self._unindexed.get([task_id], self._lanes)
        return events or [event_of(task) for task in unindexed]

    def _events(self, task_id: str) -> list[Event]:
        return [
            Event(
                version=version, at=at, status=STATUS[status], attempt=attempt, failures=failures,
                worker_id=worker_id, error=error, available_at=available_at, log=log,
            )
            for version, at, status, attempt, failures, worker_id, error, available_at, log in self._db.execute(
                SQL["history"], (task_id,)
            )
            if status in STATUS
        ]  # fmt: skip

    def read_note(self, name: str) -> Note | None:
        row = self._db.execute("SELECT name, CAST(data AS BLOB), version FROM notes WHERE name = ?", (name,)).fetchone()
        return row and Note(*row)

    def notes(self, prefix: str) -> list[Note]:
        return [Note(*row) for row in self._db.execute(SQL["notes"], (prefix,))]
