"""What workers and server say to each other: the fields of docs/http.md, and what makes them safe."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from qo.notes import DEAD_AFTER
from qo.web.task_words import Word

POLL_INTERVAL_MS = 1000
LEASE = DEAD_AFTER  # seconds from a poll or heartbeat on: a worker that has lost its tasks is dead

WorkerStatus = Literal["active", "draining", "dead"]


class Register(Struct, frozen=True, kw_only=True):
    capabilities: list[str] = []
    capacity: int = 5
    types: list[str] = []  # empty: all. Named, they are never taken for spelling mistakes
    queues: list[str] = []  # empty: all
    version: str = ""


class Registered(Struct, frozen=True, kw_only=True):
    worker_id: str
    poll_interval_ms: int = POLL_INTERVAL_MS


class Poll(Struct, frozen=True, kw_only=True):
    available_capacity: int
    capabilities: list[str] | None = None  # those it registered with
    request_id: str | None = None  # fresh and random for every poll; a repeat of it gets the same leases
    wait: float = 0.0  # seconds to wait for a first task


class HandedOut(Struct, frozen=True, kw_only=True):
    task_id: str
    task_type: str
    parameters: Any
    timeout_seconds: float
    trace_id: str
    attempt: int  # grows with every claim: a fence for what the worker writes elsewhere
    lease_token: str  # sent back with the result, it tells this attempt from a later one
    lease_seconds: float  # until then a heartbeat must come


class Polled(Struct, frozen=True, kw_only=True):
    tasks: list[HandedOut]


class Failure(Struct, frozen=True, kw_only=True):
    message: str
    retriable: bool = True


class Result(Struct, frozen=True, kw_only=True):
    task_id: str
    status: Literal["completed", "failed"]
    result: Any = None
    error: Failure | str | None = None
    retriable: bool = True  # False: give up now, whatever retries are left
    retry_after: float | None = None  # seconds, instead of the task's own back-off
    lease_token: str | None = None


class Report(Struct, frozen=True, kw_only=True):
    """One result, its fields here; or many, under `results`."""

    task_id: str | None = None
    status: Literal["completed", "failed"] | None = None
    result: Any = None
    error: Failure | str | None = None
    retriable: bool = True
    retry_after: float | None = None
    lease_token: str | None = None
    results: list[Result] | None = None


class Recorded(Struct, frozen=True, kw_only=True):
    """What became of one result. One that was refused has a `code` and an `error`, and no status."""

    task_id: str
    acknowledged: bool = True
    status: Word | UnsetType = UNSET  # what the task is now
    repeated: bool = False  # it had been recorded before
    code: Literal["not_found", "lease_lost"] | UnsetType = UNSET
    error: str | UnsetType = UNSET


class Answered(Struct, frozen=True, kw_only=True):
    """To one result, what became of it; to many, that of each under `results`."""

    acknowledged: bool = True
    task_id: str | UnsetType = UNSET
    status: Word | UnsetType = UNSET
    repeated: bool | UnsetType = UNSET
    results: list[Recorded] | UnsetType = UNSET


class Heartbeat(Struct, frozen=True, kw_only=True):
    current_load: int = 0
    status: WorkerStatus = "active"
    current_tasks: list[str] | None = None  # None: all it was given


class Acknowledged(Struct, frozen=True, kw_only=True):
    acknowledged: bool = True
    drain: bool = False  # someone wants this worker to finish what it has and leave
    lost: list[str] = []  # of `current_tasks`: cancelled, or given to another; stop working on them
