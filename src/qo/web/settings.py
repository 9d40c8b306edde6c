"""How the HTTP face behaves: numbers and names only."""

from msgspec import Struct, field

from qo.model import PromotionTimes
from qo.monitor import MonitorSettings
from qo.notes import DEAD_AFTER
from qo.web.limits import ServerLimits
from qo.web.oidc.settings import OidcSettings


class Level(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task of one priority gets if its submission does not say."""

    max_retries: int
    timeout_seconds: float


LEVEL_DEFAULTS = {
    "high": Level(max_retries=5, timeout_seconds=300.0),
    "medium": Level(max_retries=3, timeout_seconds=600.0),
    "low": Level(max_retries=2, timeout_seconds=900.0),
}


class WebSettings(Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...] = ()  # names this server answers to, besides those of the loopback
    origins: tuple[str, ...] = ()  # pages from elsewhere that may call, exactly as browsers write them
    token_required: bool = False  # True: even while there is no token, and even from this machine
    rate_limit: float = 0.0  # requests a second for each token; 0 is no limit
    body_limit: int = 1024 * 1024  # bytes
    limits: ServerLimits = ServerLimits()  # what clients may cost; those of connections hold under `qo serve`
    levels: dict[str, Level] = field(default_factory=lambda: dict(LEVEL_DEFAULTS))
    timeout_growth: float = 1.5  # each retry of a task submitted by /api/v1 may take so much longer
    ageing: float | PromotionTimes = PromotionTimes()  # as in qo.client.Settings, where the queue is opened by its URL
    sample_interval: float = 5.0  # seconds between two looks at the counts
    dead_after: float = DEAD_AFTER  # seconds of silence after which a worker is shown as dead
    longest_wait: float = 60.0  # seconds one request may wait for a result
    title: str = "qo"  # what the dashboard calls this queue
    listeners: int = 32  # at once, for live updates
    monitor: MonitorSettings | None = None  # a monitor beside the server
    oidc: OidcSettings | None = None  # where people log in to the dashboard
