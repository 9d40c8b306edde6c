"""Waiting for something to claim: looking ever more rarely, and waking at once for what this process does itself."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from qo.engines.pauses import Pauses


class Look(NamedTuple):
    """What a look at the object showed."""

    found: bool
    due_in: float  # seconds until the next task is due, wanted or not


class Waiting:
    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._pauses = Pauses()
        self._due_in = float("inf")

    def wake(self) -> None:
        self._pauses.start_over()
        self._due_in = float("inf")
        self._news.set()

    async def wait(self, look: Callable[[], Awaitable[Look]], timeout: float) -> None:
        """Sleep first: whoever waits has just found nothing."""
        self._news.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while (left := until - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._pauses.next, self._due_in)):
                    await self._news.wait()
                    return
            if loop.time() >= until:
                return
            found, self._due_in = await look()
            if found:
                self._pauses.start_over()
                return
            self._pauses.lengthen()
