"""The messages of the worker protocol, described in docs/http.md."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from qo.notes import DEAD_AFTER
from qo.web.task_words import Word

POLL_INTERVAL_MS = 1000
LEASE = DEAD_AFTER  # seconds after a poll or heartbeat; a worker that has lost its tasks is dead

ReportedStatus = Literal["active", "draining", "dead"]


class Register(Struct, frozen=True, kw_only=True):
    capabilities: list[str] = []
    capacity: int = 5
    types: list[str] = []  # empty: all
    queues: list[str] = []  # empty: all
    version: str = ""


class Registered(Struct, frozen=True, kw_only=True):
    worker_id: str
    poll_interval_ms: int = POLL_INTERVAL_MS


class Poll(Struct, frozen=True, kw_only=True):
    available_capacity: int
    capabilities: list[str] | None = None  # None: those of the registration
    request_id: str | None = None  # random and new for every poll; a repeat returns the same leases
    wait: float = 0.0  # seconds to wait for the first task


class PolledTask(Struct, frozen=True, kw_only=True):
    task_id: str
    task_type: str
    parameters: Any
    timeout_seconds: float
    trace_id: str
    attempt: int  # grows with every claim; usable as a fencing token
    lease_token: str  # sent back with the result; identifies this attempt
    lease_seconds: float  # a heartbeat must arrive within this time


class Polled(Struct, frozen=True, kw_only=True):
    tasks: list[PolledTask]


class Failure(Struct, frozen=True, kw_only=True):
    message: str
    retriable: bool = True


class Result(Struct, frozen=True, kw_only=True):
    task_id: str
    status: Literal["completed", "failed"]
    result: Any = None
    error: Failure | str | None = None
    retriable: bool = True  # False: fail permanently, even if retries are left
    retry_after: float | None = None  # seconds, instead of the back-off of the task
    lease_token: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """One result in these fields, or many in `results`."""

    task_id: str | None = None
    status: Literal["completed", "failed"] | None = None
    result: Any = None
    error: Failure | str | None = None
    retriable: bool = True
    retry_after: float | None = None
    lease_token: str | None = None
    results: list[Result] | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """The outcome of one reported result. A rejected result has a `code` and an `error` instead of a status."""

    task_id: str
    acknowledged: bool = True
    status: Word | UnsetType = UNSET  # status of the task now
    repeated: bool = False  # it was recorded before
    code: Literal["not_found", "lease_lost"] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Answered(Struct, frozen=True, kw_only=True):
    """The outcome of one result, or of many in `results`."""

    acknowledged: bool = True
    task_id: str | UnsetType = UNSET
    status: Word | UnsetType = UNSET
    repeated: bool | UnsetType = UNSET
    results: list[Recorded] | UnsetType = UNSET


class Heartbeat(Struct, frozen=True, kw_only=True):
    current_load: int = 0
    status: ReportedStatus = "active"
    current_tasks: list[str] | None = None  # None: all tasks of the worker


class Acknowledged(Struct, frozen=True, kw_only=True):
    acknowledged: bool = True
    drain: bool = False  # the worker should finish its tasks and exit
    lost: list[str] = []  # tasks of `current_tasks` that were cancelled or claimed by another worker
