"""Signals in the middle of a test."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def on_alarm(handle: Callable[[int, FrameType | None], object], first: float, interval: float = 0.0) -> Iterator[None]:
    """Call `handle` at SIGALRM, which arrives after `first` seconds and then at each interval.

    At the end the signal is ignored before the timer is stopped: a handler that is still due might start the timer
    again, and the default action would then end the process.
    """
    previous = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, first, interval)
        yield
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
