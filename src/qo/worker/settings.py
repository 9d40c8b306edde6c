"""Settings of a worker."""

from msgspec import Struct

from qo.model import LEASE


class WorkerSettings(Struct, frozen=True, kw_only=True):
    id: str | None = None  # None: generated
    concurrency: int = 10  # tasks that run concurrently
    queues: tuple[str, ...] = ()  # empty: all
    types: tuple[str, ...] = ()  # empty: all types with handlers
    capabilities: tuple[str, ...] = ()
    capture_logs: bool = False  # store the last log lines of each attempt; adds a handler to the root logger
    shards: tuple[str, ...] = ()  # shown in the registration; the URL of the bucket determines what is claimed
    lease: float = LEASE  # seconds; renewed every third of it
    grace: float = 30.0  # seconds a shutdown waits for running tasks before it releases them
    drain: bool = False  # stop when no task is due and no retry is pending
    heartbeat: float = 10.0  # seconds between two registrations; up to three times that while idle on a slow store
    poll: float | None = None  # seconds between two claims at most; None: chosen by the duration of a claim
    prefetch: int = 7500  # tasks held beyond the running ones at most; only quick tasks are prefetched
    # Seconds after which a due task of a type that was never registered is failed; None: it stays pending.
    fail_unknown_types: float | None = None
    stuck_after: float = 120.0  # seconds without an answer of the store after which the worker stops
    tasks_per_process: int = 1000  # a child process is replaced after this many tasks
