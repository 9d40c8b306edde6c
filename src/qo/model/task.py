"""What a task is: immutable data."""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from qo.model.ranking import AGEING, MEDIUM, due_at, rank
from qo.model.retry import DEFAULT_POLICY, RetryPolicy

LONGEST = 3.2e9  # seconds, a hundred years: no duration or distance in time is longer
LATEST = 253_402_300_799.0  # the last instant that ISO 8601 can show: the end of the year 9999
TIMEOUT = 300.0  # seconds the first attempt may take
MAX_RETRIES = 3
WINDOW = 86_400.0  # seconds an idempotency key holds
STAMP = 3e-6  # seconds from one task of a batch to the next: a strict rank still tells them apart


class Status(StrEnum):
    __hash__ = str.__hash__  # an enum's own is a call into Python, and sets of statuses are asked for every task

    PENDING = "pending"  # claimable once `available_at` has come
    RUNNING = "running"  # leased to a worker until `lease_expires_at`
    COMPLETED = "completed"  # has a result
    FAILED = "failed"  # gave up: the dead letter state
    CANCELLED = "cancelled"  # ended by someone
    ARCHIVED = "archived"  # finished and out of the normal listing


class FailureKind(StrEnum):
    """Why an attempt failed. `CANCELLED` is why a task has no result; no attempt fails so."""

    __hash__ = str.__hash__

    ERROR = "error"  # its handler raised, or its worker reported a failure
    TIMEOUT = "timeout"
    LOST = "lost"  # its worker or its process did not live to report it
    UNKNOWN_TYPE = "unknown_type"  # no worker handles its type
    CANCELLED = "cancelled"

    @classmethod
    def _missing_(cls, value: object) -> "FailureKind | None":
        """A kind that a newer build writes is read as an error."""
        return cls.ERROR if isinstance(value, str) else None


UNFINISHED = frozenset({Status.PENDING, Status.RUNNING})
FINISHED = frozenset(Status) - UNFINISHED


# `gc=False` here and below: these hold no reference that could lead back to them, and collecting cycles among
# thousands of them costs more than making them.


class NewTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task as its producer describes it. The engine stamps the rest."""

    id: str
    queue: str
    type: str
    payload: bytes = b"null"
    priority: int = MEDIUM
    needs: tuple[str, ...] = ()  # capabilities a worker must have, sorted
    timeout: float = TIMEOUT
    max_retries: int = MAX_RETRIES
    retry: RetryPolicy = DEFAULT_POLICY
    delay: float = 0.0
    run_at: float | None = None  # an instant named by the producer; goes before `delay`
    idempotency_key: str | None = None
    trace_id: str | None = None
    ageing: float = AGEING
    window: float = WINDOW
    next_id: str | None = None  # with a key: the id of this task if the one under `id` is from an earlier window


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """A task as a store keeps it."""

    id: str
    queue: str
    type: str
    status: Status = Status.PENDING
    payload: bytes = b"null"
    result: bytes | None = None
    error: str | None = None  # of the last failure; gone once the task completes
    failure_kind: FailureKind | None = None  # of `error`
    archived_from: Status | None = None  # the status before it was archived; None for those archived by older builds
    priority: int = MEDIUM
    needs: tuple[str, ...] = ()
    timeout: float = TIMEOUT
    max_retries: int = MAX_RETRIES
    retry: RetryPolicy = DEFAULT_POLICY
    attempt: int = 0  # grows with every claim, so an old holder is told apart from the new one
    failures: int = 0  # errors, timeouts and crashes; alone compared with `max_retries`
    available_at: float  # as it was asked for: it may lie before `created_at`
    lease_expires_at: float | None = None
    worker_id: str | None = None  # who runs it, or ran it last
    created_at: float
    updated_at: float
    started_at: float | None = None
    completed_at: float | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    run_at: float | None = None  # the instant its producer named; `available_at` moves on with every retry
    version: int = 1  # grows with every write
    rank: float  # lower goes first; no two tasks of a batch have the same
    lease_id: str | None = None  # a capability: never shown. Kept after settling, so that a repeat is recognised

    @property
    def due_at(self) -> float:
        """Since when the task waits, or until when it may not be claimed."""
        return due_at(self.available_at, self.created_at)

    @property
    def ended_as(self) -> Status:
        """Its status, or the one it had before it was archived; guessed for a task that an older build archived."""
        if self.status is not Status.ARCHIVED:
            return self.status
        if self.archived_from is not None:
            return self.archived_from
        if self.error is not None and self.failures > 0:
            return Status.FAILED
        return Status.CANCELLED if self.result is None else Status.COMPLETED

    @property
    def is_claimed_only(self) -> bool:
        """A worker holds it and has not said that its handler began; a handler that is quick is told of at its end."""
        return self.status is Status.RUNNING and self.started_at is None

    @property
    def time_limit(self) -> float:
        """Seconds this attempt may take: the timeout as it was submitted, grown by what failed before."""
        return min(LONGEST, self.timeout * self.retry.growth(self.failures)) if self.failures else self.timeout

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.type} {self.status} attempt={self.attempt}>"


def kind_of(error: str | None, kind: FailureKind | None) -> FailureKind | None:
    """The kind to store or read with an error. Older builds write errors without kinds, and kinds outlive errors."""
    return None if error is None else kind or FailureKind.ERROR


def with_kind(task: Task) -> Task:
    """A task as it was decoded, with the kind of its error."""
    kind = kind_of(task.error, task.failure_kind)
    return task if task.failure_kind is kind else replace(task, failure_kind=kind)


def lane_of(task: Task) -> tuple[str, str, tuple[str, ...], int]:
    """Tasks of one lane are claimed in the constant order of their ranks."""
    return task.queue, task.type, task.needs, task.priority


def stamps(now: float, size: int) -> list[float]:
    """An instant for each task of a batch, so that a batch keeps its order."""
    return [now - STAMP * behind for behind in range(size - 1, -1, -1)]


def created(new: NewTask, now: float, *, lead: float = 0.0) -> Task:
    """The task as it is stored. `now` is its stamp, and `lead` how long that lies before the last one of its batch.

    Tasks that share a `run_at` would have one rank. Each is ranked by its `lead` earlier, so a batch keeps its order.
    """
    available_at = now + new.delay if new.run_at is None else new.run_at
    ranked_at = available_at if new.run_at is None else new.run_at - lead
    return Task(
        id=new.id,
        queue=new.queue,
        type=new.type,
        payload=new.payload,
        priority=new.priority,
        needs=new.needs,
        timeout=new.timeout,
        max_retries=new.max_retries,
        retry=new.retry,
        available_at=available_at,
        created_at=now,
        updated_at=now,
        idempotency_key=new.idempotency_key,
        trace_id=new.trace_id,
        run_at=new.run_at,
        rank=rank(due_at(ranked_at, now), new.priority, new.ageing),
    )


def admit(existing: Task | None, new: NewTask, now: float, *, lead: float = 0.0) -> Task | None:
    """The task to store for `new`, or None if `existing` stands, the last one under its idempotency key.

    When that one is finished and the key's window is over, the next task follows it, under an id of its own.
    """
    if existing is None:
        return created(new, now, lead=lead)
    over = new.idempotency_key is not None and now - existing.created_at >= new.window
    if over and existing.status in FINISHED and new.next_id is not None:
        return created(replace(new, id=new.next_id), now, lead=lead)
    return None
