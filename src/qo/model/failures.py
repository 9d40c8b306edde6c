"""Changes after a failed attempt: whether and when to retry, and the final status of the task."""

from qo.model.change import Change, Guard
from qo.model.task import LONGEST, LOST, FailureKind, Status, Task
from qo.model.text import storable_log, storable_text


def lost_its_process(task: Task) -> bool:
    """Whether the process of the last attempt died: the task may have caused it."""
    return task.failure_kind is FailureKind.LOST


def ended_because(task: Task) -> FailureKind:
    """Why a task ended without a result."""
    if task.ended_as is Status.CANCELLED:
        return FailureKind.CANCELLED
    return task.failure_kind or FailureKind.ERROR


def after_error(
    task: Task,
    error: str,
    *,
    kind: FailureKind = FailureKind.ERROR,
    random: float,
    after: float | None = None,
    started_at: float | None = None,
    log: str | None = None,
) -> Change:
    """Retry after the back-off (or `after` seconds), or fail permanently if no retries are left."""
    if task.failures >= task.max_retries:
        return fail(task, error, kind=kind, started_at=started_at, log=log)
    failures = task.failures + 1
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.PENDING,
        failures=failures,
        delay=task.retry.delay(failures, random) if after is None else min(LONGEST, max(0.0, after)),  # 0 for NaN
        error=storable_text(error),
        failure_kind=kind,
        log=storable_log(log),
    )


def fail(
    task: Task,
    error: str,
    *,
    kind: FailureKind = FailureKind.ERROR,
    started_at: float | None = None,
    log: str | None = None,
) -> Change:
    """Fail permanently, even if retries are left."""
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.FAILED,
        failures=task.failures + 1,
        error=storable_text(error),
        failure_kind=kind,
        started_at=started_at,
        log=storable_log(log),
    )


def reject(task: Task, error: str) -> Change:
    """Fail a pending task of a type that no worker handles. No attempt was made, so `attempt` and `failures` stay."""
    return Change(
        id=task.id,
        guard=Guard.WAITING,
        to=Status.FAILED,
        error=storable_text(error),
        failure_kind=FailureKind.UNKNOWN_TYPE,
    )


def set_apart(task: Task, reason: str, *, log: str | None = None) -> Change:
    """Release a task whose process died, possibly because of another task. It uses up no retry, and the task runs
    alone in a process next time."""
    return Change(
        id=task.id,
        guard=Guard.HELD,
        lease_id=task.lease_id,
        to=Status.PENDING,
        delay=0.0,
        error=storable_text(f"{LOST}{reason}"),
        failure_kind=FailureKind.LOST,
        log=storable_log(log),
    )


def after_expiry(task: Task, *, random: float) -> Change:
    """The lease expired. This counts as a failure, so a task that kills its workers ends as failed."""
    error = f"{LOST}worker {task.worker_id} let the lease of attempt {task.attempt} expire"
    return after_error(task, error, kind=FailureKind.LOST, random=random)


def expire(task: Task, *, random: float, grace: float) -> Change:
    """As `after_expiry`, but written only if the lease expired `grace` seconds ago by the store's clock."""
    lost = after_expiry(task, random=random)
    return Change(
        id=lost.id,
        guard=Guard.EXPIRED,
        lease_id=lost.lease_id,
        grace=grace,
        to=lost.to,
        failures=lost.failures,
        delay=lost.delay,
        error=lost.error,
        failure_kind=lost.failure_kind,
    )
