"""A task as immutable data: its retry policy, its id, how the stored task is created, and the events of its history."""

from enum import StrEnum
from hashlib import sha256
from math import inf

from msgspec import Struct, field
from msgspec.structs import replace

from qo.model.group import group_in, without_group
from qo.model.ranking import AGEING, MEDIUM, due_at, rank


class RetryPolicy(Struct, frozen=True, kw_only=True, gc=False):
    """Exponential back-off with jitter. No delay is longer than `max`, regardless of the jitter."""

    initial: float = 1.0
    max: float = 60.0
    multiplier: float = 2.0
    jitter: float = 0.25  # ± this share of the delay
    timeout_growth: float = 1.0  # the timeout of each retry, as a multiple of the previous one

    def delay(self, failures: int, random: float) -> float:
        """Seconds before the next attempt after this number of failures. `random` is uniform in [0, 1)."""
        try:
            exact = min(self.max, self.initial * float(self.multiplier) ** (failures - 1))
        except OverflowError:  # thousands of failures: far above any `max`
            exact = self.max if self.initial else 0.0
        return min(self.max, exact * (1 + self.jitter * (2 * random - 1)))

    def growth(self, failures: int) -> float:
        """The factor of the timeout after this number of failures."""
        try:
            return float(self.timeout_growth) ** failures
        except OverflowError:
            return inf


DEFAULT_POLICY = RetryPolicy()
SLOW_POLICY = RetryPolicy(initial=10.0, multiplier=4.0, max=21_600.0, jitter=0.2)  # 10 s, 40 s, 2.7 min, ... to 6 h


def derived_id(queue: str, type: str, key: str) -> str:
    """A UUID (version 8) for the task with this key in this queue and type. `add` thus rejects a duplicate atomically.

    The hashed text contains lengths, so that ("a", "bc") and ("ab", "c") differ.
    """
    scope = f"{len(queue)}:{queue}:{len(type)}:{type}:{key}"
    digest = sha256(scope.encode(errors="surrogatepass")).hexdigest()
    return (
        f"{digest[:8]}-{digest[8:12]}-8{digest[13:16]}-{'89ab'[int(digest[16], 16) % 4]}{digest[17:20]}-{digest[20:32]}"
    )


LONGEST = 3.2e9  # seconds: a hundred years, the longest duration that is accepted
LATEST = 253_402_300_799.0  # the last instant that ISO 8601 can express: the end of the year 9999
BLOCKED_AT = 2 * LONGEST  # `available_at` of a task that waits for other tasks of its workflow
TIMEOUT = 300.0  # seconds for the first attempt
MAX_RETRIES = 3
WINDOW = 86_400.0  # seconds for which an idempotency key is unique
LOST = "lost: "  # prefix of the error of a lost attempt; its kind is `FailureKind.LOST`
_STAMP_INTERVAL = 3e-6  # seconds between the tasks of a batch; large enough to keep strict ranks distinct


class Status(StrEnum):
    __hash__ = str.__hash__  # the hash of an enum is slow, and statuses are looked up for every task

    PENDING = "pending"  # claimable once `available_at` has passed
    RUNNING = "running"  # leased to a worker until `lease_expires_at`
    COMPLETED = "completed"  # has a result
    FAILED = "failed"  # permanently (a dead letter)
    CANCELLED = "cancelled"  # by a user
    ARCHIVED = "archived"  # finished, and omitted from the default listing


class FailureKind(StrEnum):
    """Why an attempt failed or a task has no result. The last two explain why a task is pending."""

    __hash__ = str.__hash__

    ERROR = "error"  # the handler raised an error, or the worker reported a failure
    TIMEOUT = "timeout"
    LOST = "lost"  # the worker or the handler's process died
    UNKNOWN_TYPE = "unknown_type"  # no worker handles the type
    CANCELLED = "cancelled"
    PARENT = "parent"  # a parent in its workflow did not complete
    PARENT_REPLAYED = "parent_replayed"  # it may have been released before a parent was replayed
    STARTED_ALONE = "started_alone"  # a user started it before its parents had completed

    @classmethod
    def _missing_(cls, value: object) -> "FailureKind | None":
        """Read kinds of newer versions as errors."""
        return cls.ERROR if isinstance(value, str) else None


UNFINISHED = frozenset({Status.PENDING, Status.RUNNING})
FINISHED = frozenset(Status) - UNFINISHED


# `gc=False` here and below: these objects cannot be part of a reference cycle, and tracking thousands of them in the
# garbage collector costs more than creating them.


class NewTask(Struct, frozen=True, kw_only=True, gc=False):
    """A task as its producer describes it. The engine adds the rest."""

    id: str
    queue: str
    type: str
    payload: bytes = b"null"
    priority: int = MEDIUM
    needs: tuple[str, ...] = ()  # capabilities that a worker must have, sorted; before them the group (model/group.py)
    timeout: float = TIMEOUT
    max_retries: int = MAX_RETRIES
    retry: RetryPolicy = DEFAULT_POLICY
    delay: float = 0.0
    run_at: float | None = None  # not before this time; overrides `delay`
    idempotency_key: str | None = None
    trace_id: str | None = None
    ageing: float = AGEING
    window: float = WINDOW
    next_id: str | None = None  # with a key: the id to use if the task under `id` belongs to an earlier window
    batch: str | None = None  # the batch that it belongs to
    until_started: bool = False  # with a key: the key is free again once this task is no longer pending
    on_duplicate: str | None = None  # with a key of `unique_key`: what the client does if the task exists


class Task(Struct, frozen=True, kw_only=True, gc=False):
    """A stored task."""

    id: str
    queue: str
    type: str
    status: Status = Status.PENDING
    payload: bytes = b"null"  # `qo.decode` returns the value
    result: bytes | None = None  # of a completed task; `qo.decode` returns the value
    error: str | None = None  # of the last failure; None once the task completes
    failure_kind: FailureKind | None = None  # of `error`
    archived_from: Status | None = None  # the status before archiving; None if an older version archived it
    priority: int = MEDIUM  # 0 to 9, lower first
    stored_needs: tuple[str, ...] = field(name="needs", default=())  # `needs`, and before them the group
    timeout: float = TIMEOUT  # seconds for the first attempt
    max_retries: int = MAX_RETRIES
    retry: RetryPolicy = DEFAULT_POLICY
    attempt: int = 0  # grows with every claim, which distinguishes an old holder from the new one
    failures: int = 0  # errors, timeouts and crashes; compared with `max_retries`
    available_at: float  # as requested: it may be before `created_at`
    lease_expires_at: float | None = None
    worker_id: str | None = None  # the worker that runs it, or ran it last
    created_at: float
    updated_at: float
    started_at: float | None = None  # the start of the handler
    completed_at: float | None = None  # the end of the task, in any status
    idempotency_key: str | None = None
    trace_id: str | None = None
    run_at: float | None = None  # as submitted; `available_at` changes with every retry
    version: int = 1  # grows with every write
    rank: float  # lower goes first; unique within a batch
    lease_id: str | None = None  # secret: never shown. Kept after settling, so that a repeated settlement is recognised
    batch: str | None = None
    progress: float | None = None  # 0 to 1, as the handler reported it; a claim clears it
    progress_text: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """The capabilities that a worker must have."""
        return without_group(self.stored_needs)

    @property
    def group(self) -> str | None:
        """The tasks that it shares limits and turns with, such as `customer_id=42`."""
        return group_in(self.stored_needs)

    @property
    def due_at(self) -> float:
        """The earliest time at which the task can be claimed, and from which its waiting time counts."""
        return due_at(self.available_at, self.created_at)

    @property
    def ended_as(self) -> Status:
        """The status, or that before archiving; inferred if an older version archived the task."""
        if self.status is not Status.ARCHIVED:
            return self.status
        if self.archived_from is not None:
            return self.archived_from
        if self.error is not None and self.failures > 0:
            return Status.FAILED
        return Status.CANCELLED if self.result is None else Status.COMPLETED

    @property
    def is_claimed_only(self) -> bool:
        """Whether a worker has leased the task and not reported a start. Short handlers are reported when they end."""
        return self.status is Status.RUNNING and self.started_at is None

    @property
    def time_limit(self) -> float:
        """Seconds for this attempt: the submitted timeout, multiplied by its growth for earlier failures."""
        return min(LONGEST, self.timeout * self.retry.growth(self.failures)) if self.failures else self.timeout

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.type} {self.status} attempt={self.attempt}>"


def kind_of(error: str | None, kind: FailureKind | None) -> FailureKind | None:
    """The kind that belongs to an error. Older versions write errors without kinds, and keep kinds without errors."""
    if error is None:
        return None
    if kind is None and error.startswith(LOST):  # stored before tasks had this field; the text is the only sign
        return FailureKind.LOST
    return kind or FailureKind.ERROR


def with_kind(task: Task) -> Task:
    """A decoded task, with the kind that belongs to its error."""
    kind = kind_of(task.error, task.failure_kind)
    return task if task.failure_kind is kind else replace(task, failure_kind=kind)


def lane_of(task: Task) -> tuple[str, str, tuple[str, ...], int]:
    """The lane of a task. Tasks of one lane are claimed in rank order, which does not change."""
    return task.queue, task.type, task.stored_needs, task.priority


def stamps(now: float, size: int) -> list[float]:
    """A distinct creation time for each task of a batch, so that the batch keeps its order."""
    return [now - _STAMP_INTERVAL * behind for behind in range(size - 1, -1, -1)]


def created(new: NewTask, now: float, *, lead: float = 0.0) -> Task:
    """The task to store. `now` is its stamp, and `lead` the seconds from it to the last stamp of the batch.

    Tasks that share a `run_at` would have the same rank. Each is ranked `lead` seconds earlier, so that the batch keeps
    its order.
    """
    available_at, rank_ = schedule(new, now, lead=lead)
    return Task(
        id=new.id,
        queue=new.queue,
        type=new.type,
        payload=new.payload,
        priority=new.priority,
        stored_needs=new.needs,
        timeout=new.timeout,
        max_retries=new.max_retries,
        retry=new.retry,
        available_at=available_at,
        created_at=now,
        updated_at=now,
        idempotency_key=new.idempotency_key,
        trace_id=new.trace_id,
        run_at=new.run_at,
        rank=rank_,
        batch=new.batch,
    )


def schedule(new: NewTask, now: float, *, lead: float = 0.0) -> tuple[float, float]:
    """When a task that is stored now can first be claimed, and its rank. `lead`: see `created`."""
    if new.run_at is None:
        available_at = now + new.delay
        return available_at, rank(max(available_at, now), new.priority, new.ageing)
    return new.run_at, rank(due_at(new.run_at - lead, now), new.priority, new.ageing)


def admit(existing: Task | None, new: NewTask, now: float, *, lead: float = 0.0) -> Task | None:
    """The task to store for `new`, or None if `existing`, the last task with its idempotency key, takes its place.

    If `existing` is finished (or has started, if the key is unique until then) and the window of the key has ended, a
    new task is stored under its own id.
    """
    if existing is None:
        return created(new, now, lead=lead)
    over = new.idempotency_key is not None and now - existing.created_at >= new.window
    is_past = existing.status in FINISHED or (new.until_started and existing.status is not Status.PENDING)
    if over and is_past and new.next_id is not None:
        return created(replace(new, id=new.next_id), now, lead=lead)
    return None


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
    log: str | None = None  # the last log lines of the attempt that this transition ended


def event_of(task: Task, log: str | None = None) -> Event:
    return Event(
        version=task.version,
        at=task.updated_at,
        status=task.status,
        attempt=task.attempt,
        failures=task.failures,
        worker_id=task.worker_id,
        error=task.error,
        available_at=task.available_at,
        log=log,
    )
