"""The only reader of time. Everything else is told what time it is, or is given a `Clock`."""

import ctypes
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import overload

Clock = Callable[[], float]  # seconds since the epoch

_CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}  # the number of the system call, by machine
_HONEST = 1.0  # seconds by which the C library's clock may differ from the kernel's


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def kernel_clock() -> float | None:
    """The machine's clock as the kernel has it, whatever this process is told; None where it cannot be asked."""
    number = _CLOCK_GETTIME.get(platform.machine())
    if sys.platform != "linux" or number is None or ctypes.sizeof(ctypes.c_long) != ctypes.sizeof(ctypes.c_int64):
        return None
    now = _Timespec()
    if ctypes.CDLL(None).syscall(number, time.CLOCK_REALTIME, ctypes.byref(now)) != 0:
        return None
    return float(now.seconds + now.nanoseconds / 1e9)


def _system_clock() -> Clock:
    """The C library's clock, unless it was made to lie (LD_PRELOAD of libfaketime): processes that share a file share
    the machine's clock too, and would take each other's leases away.
    """
    kernel = kernel_clock()
    if kernel is None or abs(time.time() - kernel) < _HONEST:
        return time.time
    return lambda: kernel_clock() or time.time()


system_clock: Clock = _system_clock()

# Seconds since boot, suspend included: a laptop that slept through a lease must notice.
# Bound here: a handler that replaces functions of `time` does not change them.
boot_clock: Clock = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
monotonic_clock: Clock = time.monotonic  # for the event loops of workers; stands still while the machine sleeps


def unset_clock(clock: Clock, otherwise: Clock = boot_clock) -> Clock:
    """A clock that nobody sets, beside `clock`: that one itself if it is a test's, which moves when told to."""
    return otherwise if clock is system_clock else clock


class ClockDistance:
    """How far `clock` is from the clock that nobody sets. Changes when `clock` is set or the machine was stopped."""

    def __init__(self, clock: Clock, elapsed: Clock | None = None) -> None:
        self.clock, self.elapsed = clock, elapsed or unset_clock(clock)
        self._distance = clock() - self.elapsed()

    def has_changed(self) -> bool:
        """Since it was made or this was last True."""
        distance = self.clock() - self.elapsed()
        if abs(distance - self._distance) < _HONEST:
            return False
        self._distance = distance
        return True


@overload
def iso(instant: float) -> str: ...
@overload
def iso(instant: float | None) -> str | None: ...
def iso(instant: float | None) -> str | None:
    """An instant as people and JSON see it."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant(text: str) -> float:
    """ISO 8601 to seconds since the epoch. A time without an offset is UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
