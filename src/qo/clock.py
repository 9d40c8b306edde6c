"""The only reader of time. Everything else is told what time it is, or is given a `Clock`."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], float]  # seconds since the epoch

system_clock: Clock = time.time

# Seconds since boot, suspend included: a laptop that slept through a lease must notice.
boot_clock: Clock = (
    (lambda: time.clock_gettime(time.CLOCK_BOOTTIME)) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)


def iso(instant: float | None) -> str | None:
    """An instant as people and JSON see it."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> float:
    """ISO 8601 to seconds since the epoch. A time without an offset is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
