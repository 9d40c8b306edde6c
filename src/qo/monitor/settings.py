"""Settings of a monitor."""

from msgspec import Struct

from qo.model import EXPIRY_GRACE
from qo.notes import DEAD_AFTER


class MonitorSettings(Struct, frozen=True, kw_only=True):
    check_interval: float = 30.0  # seconds between two checks for expired leases and dead workers
    worker_health_threshold: float = DEAD_AFTER  # seconds without a heartbeat after which a worker counts as dead
    sweep_interval: float = 300.0  # seconds between two sweeps (repair, retention, compaction); 0 is never
    sweep_page_size: int = 1000
    grace: float = EXPIRY_GRACE  # seconds since the expiry of a lease, to tolerate clock differences
    # Seconds after which finished tasks are archived; they are deleted after twice that. 0 is never. None is the
    # store's default: never, or a day in the bucket layouts `one` and `sqlite`.
    retention: float | None = None
    failed_retention: float | None = None  # seconds after which failed tasks are deleted; 0 is never, None as above
    forget_workers: float = 86_400.0  # seconds after which a dead worker is no longer listed
