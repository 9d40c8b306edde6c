"""Reads: tasks by id, filtered pages, counts, history and notes."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from qo.engines.postgres.arrays import texts, uuids
from qo.engines.postgres.pool import PostgresPool, Rows
from qo.engines.postgres.rows import STATUS
from qo.engines.postgres.statements import COLUMNS, NOTE_TABLES, fill, note_statement
from qo.engines.postgres.table import PostgresTable
from qo.errors import StorageError
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
    is_id,
)

_MAX_SORTED = 1000  # up to this many pending tasks are read and sorted; more are found among all tasks
_MAX_SORTED_COMING = 20_000  # the same for tasks that are due later
_MAX_COUNT_ROWS = 1000  # more rows of counts are folded
_MAX_BATCH_COUNTS = 2  # connections that count batches; a list counts a hundred, and claims need the others
_NOW = "coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8)"
_SHELVED = FINISHED - {Status.COMPLETED}  # statuses in the index on `shelf`

_KINDS = {
    PendingKind.READY: f"tasks.available_at <= {_NOW}",
    PendingKind.SCHEDULED: f"(tasks.available_at > {_NOW} AND tasks.available_at <> {BLOCKED_AT!r} AND failures = 0)",
    PendingKind.RETRYING: f"(tasks.available_at > {_NOW} AND tasks.available_at <> {BLOCKED_AT!r} AND failures > 0)",
    PendingKind.BLOCKED: f"tasks.available_at = {BLOCKED_AT!r}",
}


class _PostgresBranch(NamedTuple):
    """One part of a search, which one index can answer."""

    condition: str
    is_ordered: bool = True  # the index returns the newest first; otherwise there are few rows, which are sorted
    source: str = "{schema}.tasks"


_READY = _PostgresBranch(
    "status = 'pending'", False, "{schema}.ready JOIN {schema}.tasks USING (id, version, lane, rank, created_at)"
)
_COMING = _PostgresBranch(
    "status = 'pending'", False, "{schema}.coming JOIN {schema}.tasks USING (id, version, available_at)"
)
_LEASED = "(SELECT DISTINCT unnest(ids) AS id FROM {schema}.leases {expired}) AS held JOIN {schema}.tasks USING (id)"


class PostgresReader:
    def __init__(self, pool: PostgresPool, table: PostgresTable) -> None:
        self._pool = pool
        self._table = table
        self._batch_counts = asyncio.Semaphore(_MAX_BATCH_COUNTS)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        values = {"id": uuids([task_id for task_id in ids if is_id(task_id)])}
        while True:
            tasks, has_gaps = await self._table.read_tasks(await self._pool.read("get", values))
            if not has_gaps:  # otherwise read again: a task may be in another lane now
                found = {task.id: task for task in tasks}
                return [found.get(task_id) for task_id in ids]

    async def find(self, where: Filter, limit: int, start: Position | None) -> list[Task]:
        has_many_pending = _reads_pending(where) and await self._has_many_pending(where)
        sql, values = query(where, limit, start, has_many_pending=has_many_pending)
        filled = fill(sql, self._pool.address.schema)

        async def attempt(_: bool) -> Rows:  # noqa: FBT001 - see repeat_if_lost
            return await self._pool.execute(filled, values | {"now": self._table.now()})

        while True:
            rows = await self._pool.repeat_if_lost(attempt, kind=StorageError)
            tasks, has_gaps = await self._table.read_tasks(rows)
            if not has_gaps:  # otherwise read again: the page has room for more
                return tasks

    async def _has_many_pending(self, where: Filter) -> bool:
        """Whether too many tasks are pending to sort them. The cost does not grow with types or tasks."""
        if _is_coming(where):
            ((number,),) = await self._pool.read("some_coming", {"limit": _MAX_SORTED_COMING + 1})
            return int(number) > _MAX_SORTED_COMING
        ((number,),) = await self._pool.read("some_pending", {"limit": _MAX_SORTED + 1})
        return int(number) > _MAX_SORTED

    async def count(self, batch: str | None = None) -> Counts:
        if batch is not None:
            async with self._batch_counts:
                return await self._by_key(await self._pool.read("counts_of_batch", {"batch": batch}))
        rows = await self._pool.read("counts", {})
        if sum(size for *_, size in rows) > _MAX_COUNT_ROWS + 2 * len(rows):
            await self._pool.write("fold", {})
        return await self._by_key(rows)

    async def _by_key(self, rows: Rows) -> Counts:
        lanes = await self._table.lanes.look_up(lane for lane, *_ in rows)
        counts: Counter[CountKey] = Counter()
        for lane, status, number, *_ in rows:
            if status in STATUS and lane in lanes:
                queue, type_, _, priority = lanes[lane]
                counts[CountKey(queue, type_, STATUS[status], priority)] += number
        return dict(counts)

    async def history(self, task_id: str) -> list[Event]:
        if not is_id(task_id):
            return []
        return [
            Event(
                version=version, at=at, status=STATUS[status], attempt=attempt, failures=failures,
                worker_id=worker_id, error=error, available_at=available_at, log=log,
            )
            for version, at, status, attempt, failures, worker_id, error, available_at, log in await self._pool.read(
                "history", {"id": task_id}
            )
            if status in STATUS
        ]  # fmt: skip

    async def now(self) -> float:
        if (given := self._table.now()) is not None:
            return given
        ((now,),) = await self._pool.read("server_time", {})
        return float(now)

    async def read_note(self, name: str) -> Note | None:
        rows = await self._pool.read(note_statement("read_note", name), {"name": name})
        return Note(*rows[0]) if rows else None

    async def notes(self, prefix: str) -> list[Note]:
        """Reads the tables of admin and audit notes only if the prefix may match them: roles may lack the right."""
        names = [note_statement("notes", prefix)]
        names += [
            note_statement("notes", start) for start in NOTE_TABLES if start != prefix and start.startswith(prefix)
        ]
        return sorted([Note(*row) for name in names for row in await self._pool.read(name, {"prefix": prefix})])


def query(where: Filter, limit: int, start: Position | None, *, has_many_pending: bool) -> tuple[str, dict[str, Any]]:
    """The statement and parameters for one page: branches that each read one index, merged.

    ORDER BY with LIMIT, or OFFSET 0, keeps the planner from merging a branch with the outer query.
    """
    conditions, values = _conditions(where, start)
    order = "ORDER BY created_at DESC, id DESC LIMIT %(limit)s"
    branches = [
        f"(SELECT tasks.* FROM {branch.source} WHERE {branch.condition}{conditions}"  # noqa: S608 - constants
        f" {order if branch.is_ordered else 'OFFSET 0'})"
        for branch in _branches(where, has_many_pending=has_many_pending)
    ]
    merged = " UNION ALL ".join(branches)
    return (
        f"SELECT {COLUMNS} FROM ({merged}) AS t ORDER BY t.created_at DESC, t.id DESC LIMIT %(limit)s",  # noqa: S608
        values | {"limit": max(limit, 0), "statuses": texts(sorted(where.possible_statuses))},
    )


def _conditions(where: Filter, start: Position | None) -> tuple[str, dict[str, Any]]:
    conditions, values = list[str](), dict[str, Any]()
    if where.queues or where.types:
        # `+ 0` keeps the planner from the index on `lane`, which does not return the newest tasks first.
        conditions.append(
            "lane + 0 = ANY (ARRAY(SELECT n FROM {schema}.lanes"
            " WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))"
            " AND (%(types)s::text[] = '{}' OR type = ANY (%(types)s::text[]))))"
        )
        values |= {"queues": texts(where.queues), "types": texts(where.types)}
    if where.batch is not None:
        conditions.append("batch = %(batch)s")
        values["batch"] = where.batch
    if where.worker_id is not None:
        conditions.append("worker_id = %(worker_id)s")
        values["worker_id"] = where.worker_id
    if where.expired_for is not None:
        conditions.append(f"lease_expires_at <= {_NOW} - %(expired_for)s")
        values["expired_for"] = float(where.expired_for)
    if where.finished_for is not None:
        # No task finishes before it is created, so the search can skip the newest tasks.
        conditions += [f"{column} <= {_NOW} - %(finished_for)s" for column in ("completed_at", "created_at")]
        values["finished_for"] = float(where.finished_for)
    if where.shards:
        conditions.append("left(tasks.id::text, 1) = ANY (%(shards)s::text[])")
        values["shards"] = texts(where.shards)
    if where.retrying is not None:
        conditions.append("(status <> 'pending' OR (failures > 0) = %(retrying)s)")
        values["retrying"] = where.retrying
    if where.pending:
        kinds = " OR ".join(_KINDS[kind] for kind in where.pending)
        conditions.append(f"(status <> 'pending' OR {kinds})")
    if start is not None:
        conditions.append("(created_at, id) < (%(before_at)s::float8, %(before_id)s::uuid)")
        values["before_at"], values["before_id"] = float(start.created_at), start.id
    return "".join(f" AND {condition}" for condition in conditions), values


def _reads_pending(where: Filter) -> bool:
    """Whether pending tasks may be read from `ready` and `coming`. A search for all statuses reads `tasks` in order."""
    statuses = where.possible_statuses
    return where.batch is None and Status.PENDING in statuses and len(statuses) < len(Status)


def _is_coming(where: Filter) -> bool:
    """Whether all pending tasks that match are due later."""
    return bool(where.pending) and PendingKind.READY not in where.pending


def _branches(where: Filter, *, has_many_pending: bool) -> list[_PostgresBranch]:
    statuses = where.possible_statuses
    if where.batch is not None or len(statuses) == len(Status) or (Status.PENDING in statuses and has_many_pending):
        return [_PostgresBranch("status = ANY (%(statuses)s::text[])")]
    branches = [_PostgresBranch(f"shelf = '{status.value}'") for status in sorted(statuses & _SHELVED)]
    if Status.COMPLETED in statuses:
        branches.append(_PostgresBranch("status = 'completed'"))
    if Status.PENDING in statuses:
        branches += [_COMING] if _is_coming(where) else [_READY, _COMING]
    if Status.RUNNING in statuses:
        expired = "" if where.expired_for is None else f"WHERE expires_at <= {_NOW} - %(expired_for)s"
        branches.append(_PostgresBranch("status = 'running'", False, _LEASED.replace("{expired}", expired)))
    return branches or [_PostgresBranch("false")]
