"""Rows of the table `tasks` as tasks."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import msgspec

from qo.engines.postgres.lanes import PostgresLane
from qo.model import FailureKind, RetryPolicy, Status, Task, kind_of

LANE_COLUMN, STATUS_COLUMN = 1, 2  # positions in `COLUMNS` of statements.py
DAMAGED_STATUS = "damaged"  # of a row that cannot be read as a task and was set aside

DEFAULT_RETRY = RetryPolicy()
STATUS = {status.value: status for status in Status}

status_text: Callable[[Status], str] = str.__str__  # faster than `.value`

_policy = lru_cache(1024)(msgspec.json.Decoder(RetryPolicy).decode)


def encode_retry(policy: RetryPolicy) -> str | None:
    return None if policy == DEFAULT_RETRY else msgspec.json.encode(policy).decode()


def task_of(row: tuple[Any, ...], lane: PostgresLane) -> Task:
    (
        id_, _, status, payload, result, error, priority, timeout, max_retries, retry, attempt, failures, available_at,
        lease_expires_at, worker_id, created_at, updated_at, started_at, completed_at, idempotency_key, trace_id,
        version, rank, lease_id, run_at, failure_kind, archived_from,
    ) = row  # fmt: skip
    return Task(
        id=id_,
        queue=lane.queue,
        type=lane.type,
        status=STATUS[status],
        payload=payload,
        result=result,
        error=error,
        failure_kind=kind_of(error, failure_kind and FailureKind(failure_kind)),
        archived_from=archived_from and STATUS[archived_from],
        priority=priority,
        needs=lane.needs,
        timeout=timeout,
        max_retries=max_retries,
        retry=DEFAULT_RETRY if retry is None else _policy(retry),
        attempt=attempt,
        failures=failures,
        available_at=available_at,
        lease_expires_at=lease_expires_at,
        worker_id=worker_id,
        created_at=created_at,
        updated_at=updated_at,
        started_at=started_at,
        completed_at=completed_at,
        idempotency_key=idempotency_key,
        trace_id=trace_id,
        run_at=run_at,
        version=version,
        rank=rank,
        lease_id=lease_id,
    )
