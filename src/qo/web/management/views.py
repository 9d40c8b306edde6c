"""Tasks as `/api/tasks` shows them: in camelCase, with attempts counted since the last reset.

| model       | `/api/tasks` | notes |
|-------------|--------------|-------|
| `pending`   | `pending`    | `runAfter` is the scheduled time, if any |
| `pending`   | `failed`     | an attempt failed; `nextRetryAt` is the time of the next one |
| `running`   | `processing` | |
| `completed` | `completed`  | |
| `failed`    | `failed`     | `nextRetryAt` is null: no attempt is left |
| `cancelled` | `failed`     | with the error "cancelled": this API has no status for it |
| `archived`  | the status before | found by its id, not in listings and counts |
"""

from collections.abc import Collection
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from qo.clock import iso
from qo.codec import json_text, shown_text
from qo.model import FailureKind, Filter, Status, Task, ended_because, is_retrying

Word = Literal["pending", "processing", "completed", "failed"]

WORDS: tuple[Word, ...] = ("pending", "processing", "completed", "failed")
STATUSES: dict[Word, tuple[Status, ...]] = {
    "pending": (Status.PENDING,),
    "processing": (Status.RUNNING,),
    "completed": (Status.COMPLETED,),
    "failed": (Status.FAILED, Status.CANCELLED),
}
BY_STATUS: dict[Status, Word] = {status: word for word, statuses in STATUSES.items() for status in statuses}


def word(task: Task) -> Word:
    return "failed" if is_retrying(task) else BY_STATUS[task.ended_as]


def filter_of(words: Collection[Word], types: tuple[str, ...]) -> Filter:
    """A filter for the tasks with one of these statuses."""
    statuses = {status for name in words for status in STATUSES[name]}
    if "failed" in words:
        statuses.add(Status.PENDING)
    only_one = ("pending" in words) is not ("failed" in words)
    return Filter(statuses=tuple(sorted(statuses)), types=types, retrying="failed" in words if only_one else None)


class ManagedTask(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task. `unhandled`: it is pending and no worker handles its type. `valuesOmitted`, in a list: payload and result
    are omitted because the page is large; request the task by its id."""

    id: str
    type: str
    payload: Any
    status: Word
    attempts: int
    max_attempts: int
    last_attempt_at: str | None
    next_retry_at: str | None
    result: Any
    error: str | None
    failure_kind: FailureKind | None
    run_after: str | None
    created_at: str
    updated_at: str
    completed_at: str | None
    unhandled: bool
    values_omitted: bool | UnsetType = UNSET


def without_values(task: Task, *, unhandled: bool) -> ManagedTask:
    light = replace(task, payload=b"null", result=None)
    return replace(managed(light, unhandled=unhandled), values_omitted=True)


def managed(task: Task, *, unhandled: bool) -> ManagedTask:
    return ManagedTask(
        id=task.id,
        type=task.type,
        payload=json_text(task.payload),
        status=word(task),
        attempts=attempts(task),
        max_attempts=task.max_retries + 1,
        last_attempt_at=_last_attempt_at(task),
        next_retry_at=next_retry_at(task),
        result=None if task.result is None else json_text(task.result),
        error=_error(task),
        failure_kind=ended_because(task) if word(task) == "failed" else None,
        run_after=iso(task.run_at),
        created_at=iso(task.created_at),
        updated_at=iso(task.updated_at),
        completed_at=iso(task.completed_at),
        unhandled=unhandled,
    )


def attempts(task: Task) -> int:
    """Attempts since the task was submitted or reset: the failed ones, and the one that runs or succeeded."""
    return task.failures + (1 if word(task) in ("processing", "completed") else 0)


def next_retry_at(task: Task) -> str | None:
    return iso(task.available_at) if is_retrying(task) else None


def _last_attempt_at(task: Task) -> str | None:
    """When the last attempt started; for a task that waits for a retry, when the last attempt ended."""
    if task.status is Status.PENDING:
        return iso(task.updated_at) if task.failures else None
    return iso(task.started_at)


def _error(task: Task) -> str | None:
    if task.error is None:
        return "cancelled" if task.status is Status.CANCELLED else None
    return shown_text(task.error)
