"""Polls a bucket for claimable tasks: less and less often while there are none, and at once after a write here."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from qo.backoff import Backoff
from qo.clock import Clock

_FIRST_INTERVAL, _MAX_INTERVAL = 0.1, 5.0
_IDLE_AFTER, _IDLE_INTERVAL = 60.0, 10.0  # after 60 s without tasks, poll only every 10 s: each poll costs money


class PollBackoff:
    """Growing intervals between the polls of a store that cannot notify."""

    def __init__(self, *, first: float = _FIRST_INTERVAL, longest: float = _MAX_INTERVAL) -> None:
        self._longest = longest
        self._backoff = Backoff(first, longest)
        self._idle_time = 0.0  # seconds of polling since a poll found something

    @property
    def next(self) -> float:
        return self._backoff.upcoming

    def start_over(self) -> None:
        self._idle_time, self._backoff.longest = 0.0, self._longest
        self._backoff.reset()

    def lengthen(self) -> None:
        """Call after a poll that found nothing."""
        self._idle_time += self.next
        if self._idle_time >= _IDLE_AFTER:
            self._backoff.longest = _IDLE_INTERVAL
        self._backoff.next()


class PollResult(NamedTuple):
    found: bool
    next_at: float | None  # when any task becomes due, by the store's clock, whether or not this worker can run it


class ClaimPoller:
    """Waits for claimable tasks."""

    def __init__(self, clock: Clock, backoff: PollBackoff | None = None) -> None:
        self._clock = clock
        self._woken = asyncio.Event()
        self.backoff = backoff or PollBackoff()
        self.next_at: float | None = None  # as in PollResult, as far as known

    def wake(self) -> None:
        """End all waits: this process wrote something claimable."""
        self.backoff.start_over()
        self.next_at = None
        self._woken.set()

    async def wait(self, poll: Callable[[], Awaitable[PollResult]], timeout: float) -> None:
        """Return when `poll` finds something, `wake` is called, or the time is up.

        The first poll follows after an interval, because the caller's claim has just found nothing.
        """
        self._woken.clear()
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while (left := until - loop.time()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self.backoff.next, self._due_in())):
                    await self._woken.wait()
                    return
            if loop.time() >= until:
                return
            found, self.next_at = await poll()
            if found:
                self.backoff.start_over()
                return
            self.backoff.lengthen()

    def _due_in(self) -> float:
        return float("inf") if self.next_at is None else max(0.0, self.next_at - self._clock())
