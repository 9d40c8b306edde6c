"""One entry of a task's history."""

from msgspec import Struct

from qo.model.task import Status, Task


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """The task entered `status` at `at`. Renewals are not transitions and leave no event."""

    version: int
    at: float
    status: Status
    attempt: int
    failures: int
    worker_id: str | None = None
    error: str | None = None
    available_at: float


def event_of(task: Task) -> Event:
    return Event(
        version=task.version,
        at=task.updated_at,
        status=task.status,
        attempt=task.attempt,
        failures=task.failures,
        worker_id=task.worker_id,
        error=task.error,
        available_at=task.available_at,
    )
