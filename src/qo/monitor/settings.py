"""How a monitor watches: numbers only."""

from msgspec import Struct

from qo.model import EXPIRY_GRACE
from qo.notes import DEAD_AFTER


class MonitorSettings(Struct, frozen=True, kw_only=True):
    check_interval: float = 30.0  # seconds between two looks for expired leases and silent workers
    worker_health_threshold: float = DEAD_AFTER  # seconds of silence after which a worker is taken for dead
    sweep_interval: float = 300.0  # seconds between two tidyings; 0 is never
    sweep_page_size: int = 1000
    grace: float = EXPIRY_GRACE  # seconds a lease must be over, for clocks that disagree
    retention: float | None = None  # seconds finished tasks are kept: archived after them, deleted after twice; 0 is
    # for ever, None is what the store asks for: for ever, or a day in the bucket layouts `one` and `sqlite`
    failed_retention: float | None = None  # seconds failed tasks are kept, then deleted; 0 is for ever, None as above
    forget_workers: float = 86_400.0  # seconds after which a dead worker is no longer listed
