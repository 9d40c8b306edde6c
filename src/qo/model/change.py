"""How a task changes. Two rules cover the whole life cycle:

  claim   takes a task that is due: it is pending, and `available_at` has passed.
  apply   writes a Change if the stored task still meets the guard of the Change.

Everything else (complete, retry, cancel, ...) is a Change with particular values. Engines implement the two rules, by
calling these functions or with statements in their own language, and make no decisions.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from qo.model.filter import ClaimRequest
from qo.model.group import regrouped
from qo.model.ranking import AGEING, STRICT
from qo.model.task import BLOCKED_AT, FINISHED, FailureKind, Status, Task, kind_of
from qo.model.text import storable_log, storable_progress_text


class Guard(StrEnum):
    __hash__ = str.__hash__

    HELD = "held"  # running under the change's lease
    EXPIRED = "expired"  # running under the change's lease, which expired at least `grace` seconds ago
    WAITING = "waiting"  # pending: no worker has it
    NOT_DUE = "not_due"  # pending, and due later
    BLOCKED = "blocked"  # pending, and waiting for other tasks of its workflow
    UNFINISHED = "unfinished"
    ENDED = "ended"  # finished, not archived
    REPLAYABLE = "replayable"  # finished without success, or archived
    FINISHED = "finished"  # also with success


STATUSES: dict[Guard, frozenset[Status]] = {
    Guard.HELD: frozenset({Status.RUNNING}),
    Guard.EXPIRED: frozenset({Status.RUNNING}),
    Guard.WAITING: frozenset({Status.PENDING}),
    Guard.NOT_DUE: frozenset({Status.PENDING}),
    Guard.BLOCKED: frozenset({Status.PENDING}),
    Guard.UNFINISHED: frozenset({Status.PENDING, Status.RUNNING}),
    Guard.ENDED: frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED}),
    Guard.REPLAYABLE: frozenset({Status.FAILED, Status.CANCELLED, Status.ARCHIVED}),
    Guard.FINISHED: FINISHED,
}
LEASED = frozenset({Guard.HELD, Guard.EXPIRED})  # guards that also compare the lease


class Change(Struct, frozen=True, kw_only=True, gc=False):
    """One guarded write. A field left at None keeps the stored value."""

    id: str
    guard: Guard
    to: Status
    lease_id: str | None = None
    grace: float = 0.0
    delay: float | None = None  # seconds from now, by the store's clock, until the task is available
    lease: float | None = None  # seconds from now, by the store's clock, until the lease expires
    failures: int | None = None
    result: bytes | None = None
    error: str | None = None
    failure_kind: FailureKind | None = None  # the kind of `error`; None with an error means ERROR
    started_at: float | None = None  # when the handler started, by the store's clock
    run_at: float | None = None  # when the task is available, or now if that has passed; instead of `delay`
    priority: int | None = None  # only with `promotion`
    promotion: float | None = None  # seconds after which a task of this priority goes before all newer tasks
    payload: bytes | None = None
    group: str | None = None  # the group of a task that was submitted without it: it moves to the lane of the group
    log: str | None = None  # the last log lines of the attempt that this change ends, for its event
    progress: float | None = None  # 0 to 1
    progress_text: str | None = None  # with `progress`; without it, None removes the stored text

    @property
    def size(self) -> int:
        """The bytes of its values, roughly."""
        return len(self.result or self.payload or b"") + len(self.log or "")


def is_due(task: Task, now: float) -> bool:
    return task.status is Status.PENDING and task.available_at <= now


def claim(task: Task, request: ClaimRequest, now: float) -> Task:
    return replace(
        task,
        status=Status.RUNNING,
        attempt=task.attempt + 1,
        lease_id=request.lease_id,
        worker_id=request.worker_id,
        lease_expires_at=now + request.lease,
        started_at=None if request.is_prefetch else now,
        progress=None,
        progress_text=None,
        updated_at=now,
        version=task.version + 1,
    )


def allows(task: Task, change: Change, now: float) -> bool:
    if task.status not in STATUSES[change.guard]:
        return False
    if change.guard in LEASED and task.lease_id != change.lease_id:
        return False
    if change.guard is Guard.NOT_DUE and task.available_at <= now:
        return False
    if change.guard is Guard.BLOCKED and task.available_at != BLOCKED_AT:
        return False
    return change.guard is not Guard.EXPIRED or (task.lease_expires_at or 0.0) <= now - change.grace


def is_repeat(task: Task, change: Change) -> bool:
    """Whether this settlement is already written: its first response may have been lost, so it succeeds again."""
    same = change.lease_id is not None and task.lease_id == change.lease_id
    return change.guard is Guard.HELD and same and task.status is change.to


def apply(task: Task, change: Change, now: float) -> Task | None:
    """The changed task, or None if the guard does not hold."""
    if not allows(task, change, now):
        return None
    to = change.to
    available_at, rank = _place(task, change, now)
    return replace(
        task,
        status=to,
        payload=task.payload if change.payload is None else change.payload,
        available_at=available_at,
        rank=rank,
        priority=task.priority if change.priority is None else change.priority,
        stored_needs=task.stored_needs if change.group is None else regrouped(task.stored_needs, change.group),
        failures=task.failures if change.failures is None else change.failures,
        result=None if to is Status.PENDING else task.result if change.result is None else change.result,
        error=None if to is Status.COMPLETED else task.error if change.error is None else change.error,
        failure_kind=None
        if to is Status.COMPLETED
        else kind_of(change.error, change.failure_kind) or task.failure_kind,
        archived_from=task.status if to is Status.ARCHIVED else None,
        worker_id=None if to is Status.PENDING else task.worker_id,
        lease_expires_at=now + change.lease if change.lease is not None else None,
        started_at=None
        if to is Status.PENDING
        else task.started_at
        if change.started_at is None
        else change.started_at,
        completed_at=(task.completed_at or now) if to in FINISHED else None,
        progress=task.progress if change.progress is None else change.progress,
        progress_text=task.progress_text if change.progress is None else change.progress_text,
        updated_at=now,
        version=task.version + 1,
    )


def _place(task: Task, change: Change, now: float) -> tuple[float, float]:
    """When the changed task is available, and its rank."""
    if change.delay is change.run_at is change.promotion is None:
        return task.available_at, task.rank
    available_at, due_at = task.available_at, task.due_at
    if change.delay is not None:
        available_at = due_at = now + change.delay
    elif change.run_at is not None:
        available_at = due_at = max(now, change.run_at)
    # Not below 0: earlier versions ranked by an `available_at` before `created_at`.
    promotion = max(0.0, task.rank - task.due_at) if change.promotion is None else change.promotion
    return available_at, due_at + promotion


def renew(
    task: Task,
    lease: float,
    *,
    started_at: float | None = None,
    progress: float | None = None,
    progress_text: str | None = None,
) -> Change:
    """Extend the lease. `started_at` is when the handler started, if that was after the claim."""
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.RUNNING,
        lease=lease,
        started_at=started_at,
        progress=progress,
        progress_text=None if progress is None else storable_progress_text(progress_text),
    )


def complete(task: Task, result: bytes = b"null", *, started_at: float | None = None, log: str | None = None) -> Change:
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.COMPLETED,
        result=result,
        started_at=started_at,
        log=storable_log(log),
    )


def release(task: Task, delay: float | None = 0.0, *, log: str | None = None, group: str | None = None) -> Change:
    """Return an unfinished task to the queue. This uses up no retry: only `failures` is compared with `max_retries`.

    With a `delay` of None the task keeps its rank and its `available_at`. With a `group` it moves to this group.
    """
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.PENDING,
        delay=delay,
        log=storable_log(log),
        group=group,
    )


def cancel(task_id: str) -> Change:
    """End a task that has not finished. A worker that runs it loses the lease at the next renewal."""
    return Change(id=task_id, guard=Guard.UNFINISHED, to=Status.CANCELLED)


def replay(task_id: str) -> Change:
    """Make a failed, cancelled or archived task pending again.

    The last error stays until the task completes, so that a task that killed its process still runs alone in one.
    """
    return Change(id=task_id, guard=Guard.REPLAYABLE, to=Status.PENDING, delay=0.0, failures=0)


def replay_finished(task_id: str) -> Change:
    """As `replay`, also for a task that completed. It loses its result."""
    return Change(id=task_id, guard=Guard.FINISHED, to=Status.PENDING, delay=0.0, failures=0)


def retry_now(task_id: str) -> Change:
    """End the back-off: the task is due now, and its failures are reset as by `replay`."""
    return Change(id=task_id, guard=Guard.WAITING, to=Status.PENDING, delay=0.0, failures=0)


def run_now(task_id: str) -> Change:
    """Make a task due now that is scheduled for later or waits for a retry. `failures` stays.

    A task that is already due is refused, because it would lose its place.
    """
    return Change(id=task_id, guard=Guard.NOT_DUE, to=Status.PENDING, delay=0.0)


def reschedule(task_id: str, run_at: float) -> Change:
    """Change when a pending task becomes due. A time in the past means now."""
    return Change(id=task_id, guard=Guard.WAITING, to=Status.PENDING, run_at=run_at)


def set_priority(task_id: str, priority: int, ageing: float = AGEING) -> Change:
    """Move a pending task to another priority. It gets the rank that it would have if it had been submitted with it."""
    promotion = priority * min(ageing, STRICT)
    return Change(id=task_id, guard=Guard.WAITING, to=Status.PENDING, priority=priority, promotion=promotion)


def withdraw(task_id: str) -> Change:
    """Cancel a task only if no worker has claimed it."""
    return Change(id=task_id, guard=Guard.WAITING, to=Status.CANCELLED)


def archive(task_id: str) -> Change:
    return Change(id=task_id, guard=Guard.ENDED, to=Status.ARCHIVED)
