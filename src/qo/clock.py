"""The only module that reads the time. Other code gets the time, or a `Clock`, as an argument.

Also times and durations as text.
"""

import ctypes
import platform
import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import overload

Clock = Callable[[], float]  # seconds since the epoch

_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}  # the number of the system call, by machine
_MAX_DIFFERENCE = 1.0  # seconds between two clocks that are considered equal
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|[smhdw]?)", re.ASCII)
_LONGEST = 3.2e9  # seconds: a hundred years, as in the model


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def kernel_clock() -> float | None:
    """The kernel's clock, read by a system call; None if that is not possible."""
    number = _CLOCK_GETTIME.get(platform.machine())
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_long) != ctypes.sizeof(ctypes.c_int64):
        return None
    now = _Timespec()
    if ctypes.CDLL(None).syscall(number, time.CLOCK_REALTIME, ctypes.byref(now)) != 0:
        return None
    return float(now.seconds + now.nanoseconds / 1e9)


def _system_clock() -> Clock:
    """The C library's clock, or the kernel's if they differ, as with libfaketime in LD_PRELOAD.

    Processes that share a file must share a clock; otherwise they would expire each other's leases.
    """
    kernel = kernel_clock()
    if kernel is None or abs(time.time() - kernel) < _MAX_DIFFERENCE:
        return time.time
    return lambda: kernel_clock() or time.time()


system_clock: Clock = _system_clock()

# Seconds since boot, including suspend, so that a laptop notices leases that expired while it was suspended.
# Bound here, so that a handler that replaces functions of `time` does not change it.
boot_clock: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
monotonic_clock: Clock = time.monotonic  # for the event loops of workers; stops while the machine is suspended


def unset_clock(clock: Clock, otherwise: Clock = boot_clock) -> Clock:
    """A clock that is never set: `otherwise` for the system clock, or `clock` itself if it is the clock of a test."""
    return otherwise if clock is system_clock else clock


class ClockDistance:
    """The difference between `clock` and a clock that is never set. It changes when `clock` is set."""

    def __init__(self, clock: Clock, elapsed: Clock | None = None) -> None:
        self.clock, self.elapsed = clock, elapsed or unset_clock(clock)
        self._distance = clock() - self.elapsed()

    def has_changed(self) -> bool:
        """Whether the difference changed since the object was created or this last returned True."""
        distance = self.clock() - self.elapsed()
        if abs(distance - self._distance) < _MAX_DIFFERENCE:
            return False
        self._distance = distance
        return True


@overload
def iso(instant: float) -> str: ...
@overload
def iso(instant: float | None) -> str | None: ...
def iso(instant: float | None) -> str | None:
    """A time in ISO 8601, in UTC."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> float:
    """Seconds since the epoch, from ISO 8601. A time without an offset is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_duration(text: str) -> float | None:
    """Seconds from `90`, `90s`, `5m`, `2h` or `7d`. None if the text is not a duration, or longer than a century."""
    found = _DURATION.fullmatch(text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else None
    return seconds if seconds is not None and seconds <= _LONGEST else None


def duration_text(seconds: float) -> str:
    """Text from which `parse_duration` reads exactly this number, which is never in scientific notation."""
    return f"{Decimal(repr(float(seconds))):f}"
