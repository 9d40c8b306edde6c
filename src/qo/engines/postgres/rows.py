"""Tasks as rows of the table `tasks`: read from columns, and written as one array per column."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from qo.engines.postgres.arrays import blobs, floats, integers, texts, uuids
from qo.engines.postgres.lanes import LaneKey, LaneNumbers, PostgresLane
from qo.model import STRICT, Change, ClaimRequest, FailureKind, Guard, NewTask, RetryPolicy, Status, Task, kind_of

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
        version, rank, lease_id, run_at, failure_kind, archived_from, batch, progress, progress_text,
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
        stored_needs=lane.needs,
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
        batch=batch,
        progress=progress,
        progress_text=progress_text,
    )


T = TypeVar("T")

# The values that many tasks of a batch have in common. The key of the lane comes first.
Template = tuple[str, str, tuple[str, ...], int, float, float, int, RetryPolicy, float, bool]

_template: Callable[[NewTask], Template] = attrgetter(
    "queue", "type", "needs", "priority", "ageing", "timeout", "max_retries", "retry", "window", "until_started"
)


class AddBatch:
    """New tasks as parameters of `add`. Each distinct template is sent once, and tasks refer to it by number."""

    def __init__(self, tasks: Sequence[NewTask]) -> None:
        self._tasks = tasks
        self._templates: dict[Template, int] = {}  # numbers from 1, as the indexes of Postgres arrays
        self._numbers = [self._templates.setdefault(found, len(self._templates) + 1) for found in map(_template, tasks)]

    def lanes(self) -> list[LaneKey]:
        return [(queue, type, needs, priority) for queue, type, needs, priority, *_ in self._templates]

    def parameters(self, numbers: Mapping[LaneKey, LaneNumbers]) -> dict[str, Any]:
        tasks, lanes = self._tasks, [numbers[lane] for lane in self.lanes()]
        columns = list(zip(*self._templates, strict=True))
        priorities, ageings, timeouts, retries, policies, windows, until_started = columns[3:]
        return {
            "size": len(tasks),
            "id": uuids([task.id for task in tasks]),
            "template": integers(self._numbers),
            "payload": blobs([task.payload for task in tasks]),
            "delay": floats([task.delay for task in tasks]),
            "run_at": floats(_empty_if_null([task.run_at for task in tasks])),
            "idempotency_key": texts(_empty_if_null([task.idempotency_key for task in tasks])),
            "next_id": uuids(_next_ids(tasks)),
            "trace_id": texts(_empty_if_null([task.trace_id for task in tasks])),
            "batch": texts(_empty_if_null([task.batch for task in tasks])),
            "lane": integers([lane.lane for lane in lanes]),
            "lane_group": integers([lane.group for lane in lanes]),
            "priority": floats(priorities),
            "ageing": floats([min(ageing, STRICT) for ageing in ageings]),
            "timeout": floats(timeouts),
            "max_retries": integers(retries),
            "retry": texts([encode_retry(policy) for policy in policies]),
            "window": floats(windows),
            "until_started": integers([int(until) for until in until_started]),
        }


def _next_ids(tasks: Sequence[NewTask]) -> list[str]:
    """A task that cannot follow another under its idempotency key gets its own id."""
    can_follow = any(task.next_id is not None for task in tasks)
    return [task.next_id or task.id for task in tasks] if can_follow else []


def _empty_if_null(values: list[T | None]) -> list[T | None]:
    """An empty list for one of nulls only: `unnest` pads shorter arrays with nulls."""
    return [] if values.count(None) == len(values) else values


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    """The parameters of `claim`, `claim_any` and `claimable`."""
    return {
        "queues": texts(request.queues),
        "types": texts(request.types),
        "capabilities": texts(sorted(request.capabilities)),
        "limited_types": texts(list(request.per_type_limits)),
        "type_limits": integers(list(request.per_type_limits.values())),
        "takes_groups": request.takes_groups,
        "full_groups": texts([key for key, most in request.group_limits.items() if most <= 0]),
        "grouped_types": texts(list(request.per_group_limits)),
        "per_group_limits": integers(list(request.per_group_limits.values())),
        "limited_groups": texts(list(request.group_limits)),
        "group_limits": integers(list(request.group_limits.values())),
        "limit": max(request.limit, 0),
        "lease": float(request.lease),
        "lease_id": request.lease_id,
        "worker_id": request.worker_id,
        "is_prefetch": request.is_prefetch,
    }


def is_plain_completion(change: Change) -> bool:
    """Whether `complete` can apply the change."""
    return (
        change.to is Status.COMPLETED
        and change.guard is Guard.HELD
        and change.result is not None
        and change.delay is change.lease is change.failures is change.progress is None
    )


def completion_parameters(changes: Sequence[Change]) -> dict[str, Any]:
    """The parameters of `complete`."""
    return {
        "id": uuids([change.id for change in changes]),
        "lease_id": texts([change.lease_id for change in changes]),
        "result": blobs([change.result for change in changes]),
        "started_at": floats([change.started_at for change in changes]),
        "log": texts(_empty_if_null([change.log for change in changes])),
    }


def change_parameters(changes: Sequence[Change], lanes: Mapping[str, int]) -> dict[str, Any]:
    """The parameters of `change`. `lanes` are the new lanes of tasks whose priority or group changes, by id."""
    return {
        "id": uuids([change.id for change in changes]),
        "guard": texts([change.guard.value for change in changes]),
        "to": texts([status_text(change.to) for change in changes]),
        "lease_id": texts([change.lease_id for change in changes]),
        "grace": floats([change.grace for change in changes]),
        "delay": floats([change.delay for change in changes]),
        "lease": floats([change.lease for change in changes]),
        "failures": integers([change.failures for change in changes]),
        "result": blobs([change.result for change in changes]),
        "error": texts([change.error for change in changes]),
        "failure_kind": texts([_kind_text(change) for change in changes]),
        "started_at": floats([change.started_at for change in changes]),
        "run_at": floats(_empty_if_null([change.run_at for change in changes])),
        "promotion": floats(_empty_if_null([change.promotion for change in changes])),
        "priority": integers(_empty_if_null([change.priority for change in changes])),
        "new_lane": integers(_empty_if_null([lanes.get(change.id) for change in changes])),
        "payload": blobs(_empty_if_null([change.payload for change in changes])),
        "log": texts(_empty_if_null([change.log for change in changes])),
        "progress": floats(_empty_if_null([change.progress for change in changes])),
        "progress_text": texts(_empty_if_null([change.progress_text for change in changes])),
    }


def _kind_text(change: Change) -> str | None:
    kind = kind_of(change.error, change.failure_kind)
    return None if kind is None else kind.value
