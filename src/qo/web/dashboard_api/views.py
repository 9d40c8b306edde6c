"""Tasks, their history and workers in the terms of the model, without lease ids."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from qo.clock import iso
from qo.codec import event_view, json_text, task_view
from qo.model import (
    FINISHED,
    Event,
    FailureKind,
    PendingKind,
    Status,
    Task,
    node_address,
    statuses_and_kinds,
    token_of,
)
from qo.notes import WorkerNote, is_dead

MAX_ERROR_LENGTH = 500  # characters of an error in a list

StatusWord = Literal["pending", "running", "completed", "failed", "cancelled", "archived"]
FilterWord = Literal[
    "pending", "running", "completed", "failed", "cancelled", "archived", "ready", "scheduled", "retrying"
]
WorkerState = Literal["busy", "idle", "draining", "stale"]


class TaskDocument(Struct, frozen=True, kw_only=True):
    """A task. In lists it has no `payload` and `result`, and only the beginning of a long error. `unhandled`: it is
    pending and no worker handles its type. `workflow`: the id of its workflow; not in lists."""

    id: str
    queue: str
    type: str
    status: StatusWord
    payload: Any | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    error: str | None
    failure_kind: FailureKind | None
    archived_from: StatusWord | None
    priority: int
    effective_priority: int
    needs: list[str]
    group: str | None
    timeout: float
    max_retries: int
    retry: dict[str, Any]
    attempt: int
    failures: int
    available_at: str
    lease_expires_at: str | None
    worker_id: str | None
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    idempotency_key: str | None
    trace_id: str | None
    run_at: str | None
    batch: str | None
    progress: float | None
    progress_text: str | None
    version: int
    unhandled: bool | UnsetType = UNSET
    workflow: str | UnsetType | None = UNSET


class WorkerDocument(Struct, frozen=True, kw_only=True):
    """A worker. It is stale if its heartbeat stopped or a monitor declared it dead."""

    id: str
    status: WorkerState
    queues: list[str]
    types: list[str]
    capabilities: list[str]
    current: list[str]
    load: int
    waiting: int
    capacity: int
    counters: dict[str, int]
    heartbeat_at: str
    started_at: str
    host: str
    version: str


def whole(task: Task, now: float, *, unhandled: bool | UnsetType = UNSET) -> TaskDocument:
    return TaskDocument(**task_view(task, now, show=json_text), unhandled=unhandled)


def brief(task: Task, now: float, *, unhandled: bool | UnsetType = UNSET) -> TaskDocument:
    """A task for lists, without payload and result."""
    view = task_view(task, now, show=lambda _: None)
    del view["payload"], view["result"]
    if view["error"] is not None and len(view["error"]) > MAX_ERROR_LENGTH:
        view["error"] = view["error"][:MAX_ERROR_LENGTH] + "…"
    return TaskDocument(**view, unhandled=unhandled)


def workflow_of(task: Task) -> str | None:
    """The workflow of a task, by its id and batch."""
    address = node_address(task.id)
    if address is None or task.batch is None or token_of(task.batch) != address.token:
        return None
    return task.batch


def worker_document(worker: WorkerNote, now: float, silent_for: float) -> WorkerDocument:
    return WorkerDocument(
        id=worker.worker_id,
        status=worker_state(worker, now, silent_for),
        queues=list(worker.queues),
        types=list(worker.types),
        capabilities=list(worker.capabilities),
        current=list(worker.current_tasks),
        load=worker.current_load,
        waiting=worker.waiting,
        capacity=worker.capacity,
        counters={"completed": worker.tasks_completed, "failed": worker.tasks_failed},
        heartbeat_at=iso(worker.last_heartbeat),
        started_at=iso(worker.started_at),
        host=worker.host,
        version=worker.version,
    )


def worker_state(worker: WorkerNote, now: float, silent_for: float) -> WorkerState:
    if is_dead(worker, now, silent_for):
        return "stale"
    if worker.status == "draining":
        return "draining"
    return "busy" if worker.current_load else "idle"


def statuses(words: list[FilterWord]) -> tuple[tuple[Status, ...], tuple[PendingKind, ...]]:
    """The given statuses, or all except archived; and the kinds of pending tasks, empty for all."""
    named, kinds = statuses_and_kinds(words)
    return named or tuple(status for status in Status if status is not Status.ARCHIVED), kinds


_NEVER_CHANGE = (
    *("id", "queue", "type", "payload", "needs", "group", "max_retries", "retry"),
    *("created_at", "idempotency_key", "trace_id", "run_at", "batch"),
)
_AS_RECORDED = ("status", "attempt", "failures", "worker_id", "error", "available_at", "version")


def documents(task: Task, events: list[Event], now: float) -> list[dict[str, Any]]:
    """The task at each transition, oldest first. Fields that a transition does not record are omitted."""
    current = task_view(task, now)
    fixed = {name: current[name] for name in _NEVER_CHANGE}
    completions = [at for at, event in enumerate(events) if event.status is Status.COMPLETED]
    started: float | None = None
    ended: float | None = None
    made = []
    for at, event in enumerate(events):
        started = event.at if event.status is Status.RUNNING else None if event.status is Status.PENDING else started
        ended = (ended or event.at) if event.status in FINISHED else None
        seen = event_view(event)
        times = {"updated_at": seen["at"], "started_at": iso(started), "completed_at": iso(ended)}
        known = fixed | {name: seen[name] for name in _AS_RECORDED} | times
        if not completions or at < completions[0]:
            known["result"] = None
        elif at >= completions[-1]:
            known["result"] = current["result"]
        if event.version == task.version:
            known = {name: value for name, value in current.items() if name != "effective_priority"}
        made.append(known)
    return made
