"""Tasks, events and workers as `/api/v1` shows them, without lease ids."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from qo.clock import iso
from qo.codec import json_text, shown_text
from qo.model import FINISHED, Event, FailureKind, LevelWord, PendingKind, Status, Task, level_word, pending_kind
from qo.notes import WorkerNote, is_dead
from qo.web.task_words import Word, effective_level, task_word, word


class PayloadView(Struct, frozen=True, kw_only=True):
    task_type: str
    parameters: Any
    required_capabilities: list[str]


class ErrorView(Struct, frozen=True, kw_only=True):
    """`kind` is the reason why the attempt failed."""

    message: str
    kind: FailureKind
    retriable: bool


class TaskView(Struct, frozen=True, kw_only=True):
    """A task. `unhandled`: it is queued and no worker handles its type. `pending_kind`: of a queued task."""

    task_id: str
    status: Word
    archived: bool
    priority: LevelWord
    effective_priority: LevelWord
    payload: PayloadView
    queue: str
    retry_count: int
    max_retries: int
    attempt: int
    created_at: str
    updated_at: str
    available_at: str
    started_at: str | None
    completed_at: str | None
    assigned_worker_id: str | None
    result: Any
    error: ErrorView | None
    timeout_seconds: float
    idempotency_key: str | None
    trace_id: str | None
    batch: str | None
    progress: float | None
    progress_text: str | None
    pending_kind: PendingKind | None
    unhandled: bool | UnsetType = UNSET


class BriefView(Struct, frozen=True, kw_only=True):
    """A task in the event stream, without values that may be large."""

    task_id: str
    task_type: str
    queue: str
    status: Word
    priority: LevelWord
    retry_count: int
    assigned_worker_id: str | None
    updated_at: str


class EventView(Struct, frozen=True, kw_only=True):
    at: str
    status: Word
    archived: bool
    attempt: int
    retry_count: int
    worker_id: str | None
    error: str | None
    available_at: str
    version: int
    log: str | None


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker."""

    worker_id: str
    status: Literal["active", "draining", "dead"]
    current_tasks: list[str]
    last_heartbeat: str
    capacity: int
    current_load: int
    capabilities: list[str]
    version: str
    queues: list[str]
    types: list[str]
    started_at: str
    tasks_completed: int
    tasks_failed: int
    host: str


def task_view(task: Task, now: float, *, unhandled: bool | UnsetType = UNSET) -> TaskView:
    return TaskView(
        task_id=task.id,
        status=task_word(task),
        archived=task.status is Status.ARCHIVED,
        priority=level_word(task.priority),
        effective_priority=effective_level(task, now),
        payload=PayloadView(
            task_type=task.type, parameters=json_text(task.payload), required_capabilities=list(task.needs)
        ),
        queue=task.queue,
        retry_count=task.failures,
        max_retries=task.max_retries,
        attempt=task.attempt,
        created_at=iso(task.created_at),
        updated_at=iso(task.updated_at),
        available_at=iso(task.available_at),
        started_at=iso(task.started_at),
        completed_at=iso(task.completed_at),
        assigned_worker_id=task.worker_id,
        result=None if task.result is None else json_text(task.result),
        error=error_view(task),
        timeout_seconds=task.timeout if task.status in FINISHED else task.time_limit,
        idempotency_key=task.idempotency_key,
        trace_id=task.trace_id,
        pending_kind=pending_kind(task, now),
        batch=task.batch,
        progress=task.progress,
        progress_text=task.progress_text,
        unhandled=unhandled,
    )


def error_view(task: Task) -> ErrorView | None:
    """A permanent failure is not retriable; one that used up its retries was."""
    if task.error is None:
        return None
    return ErrorView(
        message=shown_text(task.error),
        kind=task.failure_kind or FailureKind.ERROR,
        retriable=task_word(task) != "failed",
    )


def brief_view(task: Task) -> BriefView:
    return BriefView(
        task_id=task.id,
        task_type=task.type,
        queue=task.queue,
        status=task_word(task),
        priority=level_word(task.priority),
        retry_count=task.failures,
        assigned_worker_id=task.worker_id,
        updated_at=iso(task.updated_at),
    )


def event_view(event: Event, task: Task) -> EventView:
    archived = event.status is Status.ARCHIVED
    return EventView(
        at=iso(event.at),
        status=task_word(task) if archived else word(event.status, event.failures, task.max_retries),
        archived=archived,
        attempt=event.attempt,
        retry_count=event.failures,
        worker_id=event.worker_id,
        error=None if event.error is None else shown_text(event.error),
        available_at=iso(event.available_at),
        version=event.version,
        log=None if event.log is None else shown_text(event.log),
    )


def worker_view(worker: WorkerNote, now: float, dead_after: float) -> WorkerView:
    return WorkerView(
        worker_id=worker.worker_id,
        status=worker_status(worker, now, dead_after),
        current_tasks=list(worker.current_tasks),
        last_heartbeat=iso(worker.last_heartbeat),
        capacity=worker.capacity,
        current_load=worker.current_load,
        capabilities=list(worker.capabilities),
        version=worker.version,
        queues=list(worker.queues),
        types=list(worker.types),
        started_at=iso(worker.started_at),
        tasks_completed=worker.tasks_completed,
        tasks_failed=worker.tasks_failed,
        host=worker.host,
    )


def worker_status(worker: WorkerNote, now: float, dead_after: float) -> Literal["active", "draining", "dead"]:
    if is_dead(worker, now, dead_after):
        return "dead"
    return "draining" if worker.status == "draining" else "active"
