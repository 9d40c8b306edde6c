"""Converts between rows and tasks, and reports the rows that do not decode.

The engine sets aside the rows that a call has found damaged, and repeats the call. `DamageFound` rolls back the call
that raises it, so the row has not been changed.

A batch is read as one row: the small columns of all tasks as a JSON text, their payloads concatenated as a blob, and
their results as another. `statements.sql` explains why.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import apsw
import msgspec
from msgspec import Meta

from qo.model import UNREADABLE, Change, FailureKind, RetryPolicy, Status, Task, kind_of
from qo.sqlite_tables.lanes import SqliteLanes

_COLUMNS = (
    "n, id, lane, status, available_at, rank, attempt, failures, version, created_at, updated_at, started_at, "
    "completed_at, lease_expires_at, lease_id, worker_id, priority, timeout, max_retries, retry, idempotency_key, "
    "trace_id, error, run_at, failure_kind, archived_from, batch, progress, progress_text"
)
# The table `unindexed` with the columns of `tasks` (unindexed.py).
UNINDEXED = """(
SELECT n, id, lane, 'pending' AS status, available_at, rank, 0 AS attempt, 0 AS failures, 1 AS version, created_at,
       created_at AS updated_at, NULL AS started_at, NULL AS completed_at, NULL AS lease_expires_at, NULL AS lease_id,
       NULL AS worker_id, priority, timeout, max_retries, retry, NULL AS idempotency_key, trace_id, NULL AS error,
       run_at, NULL AS failure_kind, NULL AS archived_from, batch, NULL AS progress, NULL AS progress_text, payload,
       NULL AS result
FROM unindexed)"""
_WHOLE = f"""
SELECT json_group_array(json_array({_COLUMNS}, length(payload), length(result))),
       CAST(group_concat(payload, '') AS BLOB), CAST(group_concat(coalesce(result, x''), '') AS BLOB)
FROM {{table}} WHERE {{column}} IN (SELECT value FROM json_each(?)) AND status <> 'damaged'
"""  # noqa: S608 - constant column names
_BRIEF = """
SELECT json_group_array(json_array(n, lane, id, status, available_at, rank, failures, version, created_at, started_at,
                                   completed_at, lease_expires_at, lease_id, worker_id, timeout, error))
FROM tasks WHERE id IN (SELECT value FROM json_each(?)) AND status <> 'damaged'
"""
BY_N, BY_ID = _WHOLE.format(table="tasks", column="n"), _WHOLE.format(table="tasks", column="id")
UNINDEXED_BY_N = _WHOLE.format(table=UNINDEXED, column="n")

_DAMAGE = (*UNREADABLE, KeyError, TypeError, apsw.SQLError)  # errors that reading a damaged row may raise
_MAX_BATCH_SIZE = 200  # tasks per row: SQLite limits values to a gigabyte

DEFAULT_RETRY = RetryPolicy()
STATUS = {status.value: status for status in Status}

# Typed, so that a value of a wrong type is detected here and not where it is used.
_Instant = Annotated[float, Meta(ge=-62_135_596_800, le=253_402_300_799)]  # the range of ISO 8601
_Status = Literal["pending", "running", "completed", "failed", "cancelled", "archived"]
_Whole = tuple[
    int,
    str,
    int,
    _Status,
    _Instant,
    float,
    int,
    int,
    int,
    _Instant,
    _Instant,
    float | None,
    float | None,
    float | None,
    str | None,
    str | None,
    int,
    float,
    int,
    str | None,
    str | None,
    str | None,
    str | None,
    float | None,
    str | None,
    _Status | None,
    str | None,
    float | None,
    str | None,
    int,
    int | None,
]  # fmt: skip - one for each of _COLUMNS, and the two lengths
_Short = tuple[
    int, int, str, _Status, _Instant, float, int, int, _Instant, float | None,
    float | None, float | None, str | None, str | None, float, str | None,
]  # fmt: skip
_whole = msgspec.json.Decoder(list[_Whole])
_short = msgspec.json.Decoder(list[_Short])
_policy = lru_cache(1024)(msgspec.json.Decoder(RetryPolicy).decode)


plain: Callable[[Status], str] = str.__str__  # the text of a status
PENDING = plain(Status.PENDING)  # hashing an enum member would call Python code
Answer = TypeVar("Answer")

DAMAGED = "damaged"  # the status of rows that were set aside


class BadRow(NamedTuple):
    n: int
    id: str
    problem: str


class DamageFound(Exception):
    """Some rows do not decode to tasks."""

    def __init__(self, rows: list[BadRow]) -> None:
        super().__init__(f"rows {[row.n for row in rows]} do not decode to tasks")
        self.rows = rows


async def around_damage(
    call: Callable[[], Awaitable[Answer]], set_aside: Callable[[list[BadRow]], Awaitable[object]]
) -> Answer:
    """Repeat the call until it finds no damaged rows. Each time some are set aside, so this ends."""
    while True:
        try:
            return await call()
        except DamageFound as found:
            await set_aside(found.rows)


def all_numbers(db: apsw.Connection) -> list[int]:
    """The numbers of all rows that are not set aside."""
    return [n for (n,) in db.execute("SELECT n FROM tasks WHERE status <> ?", (DAMAGED,))]


def encode_retry(policy: RetryPolicy) -> str | None:
    return None if policy == DEFAULT_RETRY else msgspec.json.encode(policy).decode()


def encode_list(values: Sequence[int] | Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


class Brief(NamedTuple):
    """The fields of a task that the rules need, without payload and result."""

    n: int
    lane: int
    status: str
    task: Task


def read_briefs(db: apsw.Connection, ids: Sequence[str]) -> dict[str, Brief]:
    """Raises DamageFound."""
    try:
        return _read_briefs(db, ids)
    except _DAMAGE as error:
        raise _found(db, "id", ids, lambda task_id: _read_briefs(db, [task_id])) from error


def _read_briefs(db: apsw.Connection, ids: Sequence[str]) -> dict[str, Brief]:
    return {row[2]: _brief(row) for row in _short.decode(db.execute(_BRIEF, (encode_list(ids),)).get)}


def _brief(row: tuple[Any, ...]) -> Brief:
    n, lane, id_, status, available_at, rank, failures, version, created_at, started_at = row[:10]
    completed_at, lease_expires_at, lease_id, worker_id, timeout, error = row[10:]
    task = Task(
        id=id_,
        queue="",
        type="",
        status=STATUS[status],
        available_at=available_at,
        rank=rank,
        failures=failures,
        version=version,
        created_at=created_at,
        updated_at=created_at,
        started_at=started_at,
        completed_at=completed_at,
        lease_expires_at=lease_expires_at,
        lease_id=lease_id,
        worker_id=worker_id,
        timeout=timeout,
        error=error,
    )
    return Brief(n, lane, status, task)


def read_tasks(
    db: apsw.Connection, sql: str, keys: Sequence[int] | Sequence[str], lanes: SqliteLanes
) -> dict[int, Task]:
    """The tasks with these numbers or ids, by number. Raises DamageFound."""
    found: dict[int, Task] = {}
    for start in range(0, len(keys), _MAX_BATCH_SIZE):
        some = keys[start : start + _MAX_BATCH_SIZE]
        try:
            found |= _read_tasks(db, sql, some, lanes)
        except _DAMAGE as error:
            if sql is UNINDEXED_BY_N:  # `set_aside` moves them into `tasks`, under other numbers, and checks all rows
                raise DamageFound([]) from error
            column = "n" if sql is BY_N else "id"
            raise _found(db, column, some, lambda key: _read_tasks(db, sql, [key], lanes)) from error
    return found


def _read_tasks(
    db: apsw.Connection, sql: str, keys: Sequence[int] | Sequence[str], lanes: SqliteLanes
) -> dict[int, Task]:
    found: dict[int, Task] = {}
    rows, payloads, results = db.execute(sql, (encode_list(keys),)).get
    at = until = 0
    for row in _whole.decode(rows):
        ends, length = at + row[-2], row[-1]
        result = None if length is None else results[until : until + length]
        found[row[0]] = _task(row, payloads[at:ends], result, lanes)
        at, until = ends, until + (length or 0)
    if at != len(payloads or b"") or until != len(results or b""):
        raise ValueError("its payload or result is text")  # its length in characters would shift all that follow
    return found


def _found(db: apsw.Connection, column: str, keys: Sequence[Any], read: Callable[[Any], object]) -> DamageFound:
    """The damaged rows among these, found by reading each alone. If none, `SqliteTable.set_aside` checks all rows."""
    bad: list[BadRow] = []
    for key in keys:
        try:
            read(key)
        except _DAMAGE as problem:
            row = db.execute(f"SELECT n, id FROM tasks WHERE {column} = ?", (key,)).fetchone()  # noqa: S608 - a constant name
            if row is not None:
                bad.append(BadRow(row[0], str(row[1]), f"its row does not decode: {problem}"))
    return DamageFound(bad)


def damaged_rows(db: apsw.Connection, lanes: SqliteLanes) -> list[BadRow]:
    """All damaged rows, found by reading every row."""
    bad: list[BadRow] = []
    numbers = all_numbers(db)
    for start in range(0, len(numbers), _MAX_BATCH_SIZE):
        try:
            read_tasks(db, BY_N, numbers[start : start + _MAX_BATCH_SIZE], lanes)
        except DamageFound as found:
            bad += found.rows
    return bad


def _task(row: tuple[Any, ...], payload: bytes, result: bytes | None, lanes: SqliteLanes) -> Task:
    queue, type_, needs, _ = lanes[row[2]]
    return Task(
        id=row[1],
        queue=queue,
        type=type_,
        status=STATUS[row[3]],
        payload=payload,
        result=result,
        error=row[22],
        failure_kind=kind_of(row[22], row[24] and FailureKind(row[24])),
        archived_from=row[25] and STATUS[row[25]],
        priority=row[16],
        stored_needs=needs,
        timeout=row[17],
        max_retries=row[18],
        retry=DEFAULT_RETRY if row[19] is None else _policy(row[19]),
        attempt=row[6],
        failures=row[7],
        available_at=row[4],
        lease_expires_at=row[13],
        worker_id=row[15],
        created_at=row[9],
        updated_at=row[10],
        started_at=row[11],
        completed_at=row[12],
        idempotency_key=row[20],
        trace_id=row[21],
        run_at=row[23],
        version=row[8],
        rank=row[5],
        lease_id=row[14],
        batch=row[26],
        progress=row[27],
        progress_text=row[28],
    )


def new_row(task: Task, now: float) -> tuple[object, ...]:
    """The columns of a new task, in the order of `insert`."""
    return (
        int(task.available_at <= now),
        task.available_at,
        task.rank,
        task.version,
        task.created_at,
        task.updated_at,
        task.priority,
        task.timeout,
        task.max_retries,
        encode_retry(task.retry),
        task.idempotency_key,
        task.trace_id,
        task.run_at,
        task.payload,
        task.batch,
    )


def changed_row(n: int, task: Task, change: Change, now: float) -> tuple[object, ...]:
    """The columns that a change may set, in the order of `change`."""
    kind = kind_of(change.error, change.failure_kind)
    return (
        n,
        plain(task.status),
        int(task.available_at <= now) if task.status is Status.PENDING else None,
        task.available_at,
        task.rank,
        task.failures,
        task.timeout,
        task.error,
        task.worker_id,
        task.lease_expires_at,
        task.started_at,
        task.completed_at,
        task.updated_at,
        task.version,
        change.result,
        None if kind is None else kind.value,
        change.progress,
        change.progress_text,
    )
