"""Waiting for something to claim: looking ever more rarely, and waking at once for what this process does itself."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from qo.backoff import Backoff

_FIRST_INTERVAL, _LONGEST_INTERVAL = 0.1, 5.0  # seconds
_QUIET_AFTER, _QUIET_INTERVAL = 60.0, 10.0  # after 60 s without tasks, poll only every 10 s: each poll costs money


class PollBackoff:
    """Intervals between two polls of a store that cannot notify: longer and longer while nothing comes."""

    def __init__(self) -> None:
        self._backoff = Backoff(_FIRST_INTERVAL, _LONGEST_INTERVAL)
        self._fruitless = 0.0  # seconds since a poll found something

    @property
    def next(self) -> float:
        return self._backoff.upcoming

    def start_over(self) -> None:
        self._fruitless, self._backoff.longest = 0.0, _LONGEST_INTERVAL
        self._backoff.reset()

    def lengthen(self) -> None:
        """A poll found nothing."""
        self._fruitless += self.next
        if self._fruitless >= _QUIET_AFTER:
            self._backoff.longest = _QUIET_INTERVAL
        self._backoff.next()


class Look(NamedTuple):
    """What a look at the object showed."""

    found: bool
    due_in: float  # seconds until the next task is due, wanted or not


class Waiting:
    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._pauses = PollBackoff()
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
