"""Workers of this process that obey the switches: told at once, so that a pause holds when its caller goes on.

A worker elsewhere reads the switches once in a poll interval. Which of the workers here serve the same store is not
asked: one that does not reads its own switches once more, and goes on.
"""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Protocol
from weakref import WeakSet

_OBEY_TIMEOUT = 2.0  # seconds to wait for workers to read the switches; they start nothing meanwhile in any case


class Listener(Protocol):
    def switches_changed(self, *, hold: bool) -> "Future[None]":
        """Read the switches now; until then, start nothing if `hold`. From any thread; done when they are obeyed."""


_listeners: WeakSet[Listener] = WeakSet()
_lock = Lock()


def listen(listener: Listener) -> None:
    with _lock:
        _listeners.add(listener)


def leave(listener: Listener) -> None:
    with _lock:
        _listeners.discard(listener)


async def tell(*, hold: bool) -> None:
    """The switches of some store changed."""
    with _lock:
        told = [listener.switches_changed(hold=hold) for listener in _listeners]
    if told:
        with suppress(TimeoutError):
            async with asyncio.timeout(_OBEY_TIMEOUT):
                await asyncio.gather(*map(asyncio.wrap_future, told), return_exceptions=True)
