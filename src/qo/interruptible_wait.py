"""Waits for a future in a thread that another thread may interrupt."""

from concurrent.futures import Future
from typing import TypeVar

_CHECK_INTERVAL = 0.1  # seconds; an exception that another thread raises here is noticed only between two waits

T = TypeVar("T")


def wait_for_result(future: Future[T]) -> T:
    """The result of a future. If the wait is interrupted, by Ctrl-C or a timeout, the future is cancelled."""
    try:
        while True:
            try:
                return future.result(_CHECK_INTERVAL)
            except TimeoutError:
                if future.done():  # its own error
                    return future.result()
    except BaseException:
        future.cancel()
        raise
