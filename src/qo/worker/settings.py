"""How a worker works: numbers only."""

from msgspec import Struct

from qo.model import LEASE


class WorkerSettings(Struct, frozen=True, kw_only=True):
    id: str | None = None  # made up if not given
    concurrency: int = 10  # tasks at once
    queues: tuple[str, ...] = ()  # all
    types: tuple[str, ...] = ()  # all it has handlers for
    capabilities: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()  # shown in its registration; the URL of the bucket says what it claims
    lease: float = LEASE  # seconds; renewed at a third of it
    grace: float = 30.0  # seconds a shutdown waits for running tasks before it hands them back
    drain: bool = False  # stop when nothing is due and no retry is waiting
    heartbeat: float = 10.0  # seconds between two registrations; up to three times that where they are dear
    poll: float | None = None  # longest sleep between two claims; None: the dearer a claim, the longer
    prefetch: int = 1000  # most tasks held ahead of those running; used only as far as they are quick
    # Seconds after which a pending task of a type that no worker has ever registered is failed; None: it stays pending.
    fail_unknown_types: float | None = None
    stuck_after: float = 120.0  # seconds without a sign of life from the store after which the worker gives up
    tasks_per_process: int = 1000  # a child process is replaced after so many
