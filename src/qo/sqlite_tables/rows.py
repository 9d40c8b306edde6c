"""Between rows and tasks.

A batch is read as one row: the small columns of all tasks as one JSON text, their payloads end to end as one blob,
their results as another. See `statements.sql` for why.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import apsw
import msgspec

from qo.model import RetryPolicy, Status, Task
from qo.sqlite_tables.lanes import Lanes

_COLUMNS = (
    "n, id, lane, status, available_at, rank, attempt, failures, version, created_at, updated_at, started_at, "
    "completed_at, lease_expires_at, lease_id, worker_id, priority, timeout, max_retries, retry, idempotency_key, "
    "trace_id, error, run_at"
)
_WHOLE = f"""
SELECT json_group_array(json_array({_COLUMNS}, length(payload), length(result))),
       CAST(group_concat(payload, '') AS BLOB), CAST(group_concat(coalesce(result, x''), '') AS BLOB)
FROM tasks WHERE {{column}} IN (SELECT value FROM json_each(?))
"""  # noqa: S608 - column names of ours
_BRIEF = """
SELECT json_group_array(json_array(n, lane, id, status, available_at, rank, failures, version, created_at, started_at,
                                   completed_at, lease_expires_at, lease_id, worker_id, timeout, error))
FROM tasks WHERE id IN (SELECT value FROM json_each(?))
"""
BY_N, BY_ID = _WHOLE.format(column="n"), _WHOLE.format(column="id")

_MOST = 200  # tasks in one row: SQLite's values end at a gigabyte

DEFAULT_RETRY = RetryPolicy()
STATUS = {status.value: status for status in Status}

_rows = msgspec.json.Decoder(list[tuple[Any, ...]])
_policy = lru_cache(1024)(msgspec.json.Decoder(RetryPolicy).decode)


plain: Callable[[Status], str] = str.__str__  # the text of a status


def encode_retry(policy: RetryPolicy) -> str | None:
    return None if policy == DEFAULT_RETRY else msgspec.json.encode(policy).decode()


def encode_list(values: Sequence[int] | Sequence[str]) -> str:
    return msgspec.json.encode(values).decode()


class Brief(NamedTuple):
    """A task as far as the rules look at it: neither what was submitted nor what came out is read."""

    n: int
    lane: int
    status: str
    task: Task


def read_briefs(db: apsw.Connection, ids: Sequence[str]) -> dict[str, Brief]:
    return {row[2]: _brief(row) for row in _rows.decode(db.execute(_BRIEF, (encode_list(ids),)).get)}


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


def read_tasks(db: apsw.Connection, sql: str, keys: Sequence[int] | Sequence[str], lanes: Lanes) -> dict[int, Task]:
    """The tasks that some numbers or ids name, by number."""
    found: dict[int, Task] = {}
    for start in range(0, len(keys), _MOST):
        rows, payloads, results = db.execute(sql, (encode_list(keys[start : start + _MOST]),)).get
        at = until = 0
        for row in _rows.decode(rows):
            ends, length = at + row[-2], row[-1]
            result = None if length is None else results[until : until + length]
            found[row[0]] = _task(row, payloads[at:ends], result, lanes)
            at, until = ends, until + (length or 0)
    return found


def _task(row: tuple[Any, ...], payload: bytes, result: bytes | None, lanes: Lanes) -> Task:
    queue, type_, needs, _ = lanes[row[2]]
    return Task(
        id=row[1],
        queue=queue,
        type=type_,
        status=STATUS[row[3]],
        payload=payload,
        result=result,
        error=row[22],
        priority=row[16],
        needs=needs,
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
    )
