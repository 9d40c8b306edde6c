"""Settings and limits of the server, and the priority configuration read from a file."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from qo.codec import parse_json
from qo.errors import InvalidSetting, InvalidTask
from qo.model import PromotionTimes, check_number, check_whole
from qo.monitor import MonitorSettings
from qo.notes import DEAD_AFTER
from qo.web.oidc.settings import OidcSettings

MEBIBYTE = 1024 * 1024


class ServerLimits(Struct, frozen=True, kw_only=True):
    """How much of the server clients can use. Times are in seconds, sizes in bytes."""

    max_connections: int = 1000  # beyond it, the connection that has been idle longest is closed
    max_header_size: int = 32 * 1024  # the request line and all headers
    max_header_count: int = 100
    header_timeout: float = 10.0  # from the connection or the first byte of a request to the end of its headers
    idle_timeout: float = 75.0  # between two requests; longer than the idle timeout of common proxies
    request_timeout: float = 120.0  # from the headers to the end of the response; event streams have no limit
    max_upload_memory: int = 64 * MEBIBYTE  # request bodies in memory, of all requests together
    max_unsent_memory: int = 32 * MEBIBYTE  # responses that clients have not read, of all requests together

    @property
    def shortest_timeout(self) -> float:
        return min(self.header_timeout, self.idle_timeout, self.request_timeout)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidSetting(f"{name} must be more than 0")


class Level(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults for the tasks of one priority level."""

    max_retries: int
    timeout_seconds: float


LEVEL_DEFAULTS = {
    "high": Level(max_retries=5, timeout_seconds=300.0),
    "medium": Level(max_retries=3, timeout_seconds=600.0),
    "low": Level(max_retries=2, timeout_seconds=900.0),
}


class WebSettings(Struct, frozen=True, kw_only=True):
    hosts: tuple[str, ...] = ()  # accepted Host names, in addition to the loopback names
    origins: tuple[str, ...] = ()  # other origins whose pages can call the API, exactly as browsers send them
    token_required: bool = False  # True: also for local requests while no token exists
    rate_limit: float = 0.0  # requests per second and token; 0 means no limit
    body_limit: int = 1024 * 1024  # bytes
    limits: ServerLimits = ServerLimits()  # the connection limits apply under `qo serve` only
    levels: dict[str, Level] = field(default_factory=lambda: dict(LEVEL_DEFAULTS))
    timeout_growth: float = 1.5  # factor for the timeout of each retry of a task submitted by /api/v1
    ageing: float | PromotionTimes = PromotionTimes()  # as in qo.client.Settings; used for stores opened by URL
    sample_interval: float = 5.0  # seconds between samples of the counts
    dead_after: float = DEAD_AFTER  # seconds without a heartbeat after which a worker is shown as dead
    longest_wait: float = 60.0  # seconds that one request can wait for a result
    title: str = "qo"  # shown by the dashboard
    listeners: int = 32  # concurrent event streams
    monitor: MonitorSettings | None = None  # runs a monitor in the server process
    oidc: OidcSettings | None = None  # login to the dashboard


class Promotion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`promotion_interval_seconds` and `promotion_batch_size` are accepted and ignored: promotion needs no sweep."""

    low_to_medium_seconds: float = 600.0
    medium_to_high_seconds: float = 1200.0
    promotion_interval_seconds: float = 60.0
    promotion_batch_size: int = 100


class PriorityFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    high: Level | None = None
    medium: Level | None = None
    low: Level | None = None
    starvation_prevention: Promotion | None = None
    timeout_growth: float | None = None


def read_priorities(path: Path, settings: WebSettings) -> WebSettings:
    """The settings, changed by what the file contains. Raises InvalidSetting."""
    try:
        given = msgspec.convert(parse_json(path.read_bytes(), str(path)), PriorityFile)
        return apply_priorities(given, settings)
    except OSError as error:
        raise InvalidSetting(f"cannot read {path}: {error.strerror or error}") from error
    except (InvalidTask, msgspec.ValidationError) as error:
        raise InvalidSetting(f"{path} is not a priority configuration: {error}") from error


def apply_priorities(given: PriorityFile, settings: WebSettings) -> WebSettings:
    named = {"high": given.high, "medium": given.medium, "low": given.low}
    levels = {name: level for name, level in named.items() if level is not None}
    for name, level in levels.items():
        check_whole(f"{name}.max_retries", level.max_retries)
        check_number(f"{name}.timeout_seconds", level.timeout_seconds, above=0.0)
    changed: dict[str, Any] = {"levels": settings.levels | levels}
    if given.timeout_growth is not None:
        check_number("timeout_growth", given.timeout_growth, above=0.0)
        changed["timeout_growth"] = given.timeout_growth
    if given.starvation_prevention is not None:
        changed["ageing"] = _times(given.starvation_prevention)
    return replace(settings, **changed)


def _times(given: Promotion) -> PromotionTimes:
    check_number("starvation_prevention.low_to_medium_seconds", given.low_to_medium_seconds)
    check_number("starvation_prevention.medium_to_high_seconds", given.medium_to_high_seconds)
    return PromotionTimes(low_to_medium=given.low_to_medium_seconds, medium_to_high=given.medium_to_high_seconds)
