"""Polls a bucket for claimable tasks: less often while there are none, and immediately after its own writes."""

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

    def __init__(
        self, *, first: float = _FIRST_INTERVAL, longest: float = _MAX_INTERVAL, idle: float = _IDLE_INTERVAL
    ) -> None:
        """`idle`: the interval after a minute without tasks."""
        self._longest, self._idle = longest, idle
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
            self._backoff.longest = self._backoff.upcoming = self._idle
        else:
            self._backoff.next()


class PollResult(NamedTuple):
    found: bool
    next_at: float | None  # when any task becomes due, by the store's clock, whether or not this worker can run it


class ClaimPoller:
    """Waits for claimable tasks."""

    def __init__(self, clock: Clock, backoff: PollBackoff | None = None) -> None:
        self._clock = clock
        self._woken, self._wakes, self._news = asyncio.Event(), 0, 0
        self._looked_at = float("-inf")
        self.backoff = backoff or PollBackoff()
        self.next_at: float | None = None  # as in PollResult, as far as known

    def wake(self) -> None:
        """End all waits: this process wrote something claimable."""
        self.backoff.start_over()
        self.next_at = None
        self._wakes += 1
        self._woken.set()

    def postpone(self) -> None:
        """Call after a read that would have shown what a poll looks for: the next poll follows after an interval."""
        self._looked_at = asyncio.get_running_loop().time()

    def poll_soon(self) -> None:
        """Call after a read that found something new: all waiting callers poll at once."""
        self._news += 1
        self._woken.set()

    async def wait(
        self,
        poll: Callable[[], Awaitable[PollResult]],
        timeout: float,
        *,
        peek: Callable[[], Awaitable[PollResult]] | None = None,
    ) -> None:
        """Return when `poll` finds something, `wake` is called, or the time is up.

        The first poll follows after an interval, because the caller's claim has just found nothing. `peek` is called
        instead of a poll that was postponed. It makes no request: any read may have applied what this caller waits for.
        """
        self._woken.clear()
        loop = asyncio.get_running_loop()
        wakes, news, waits_since, until = self._wakes, self._news, loop.time(), loop.time() + timeout
        while (left := until - loop.time()) > 0 and self._wakes == wakes:
            looked_at = self._looked_at
            poll_at = max(waits_since, looked_at) + self.backoff.next
            if news == self._news:  # otherwise something was found during the last poll
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, max(0.0, poll_at - loop.time()), self._due_in())):
                        await self._woken.wait()
            if self._wakes != wakes or loop.time() >= until:
                return
            self._woken.clear()
            has_news, news = news != self._news, self._news
            is_postponed = not has_news and looked_at != self._looked_at and self._due_in() > 0
            read = peek if is_postponed and peek is not None else poll
            found, self.next_at = await read()
            if found:
                self.backoff.start_over()
                return
            if read is poll:
                self.backoff.lengthen()
                waits_since = loop.time()

    def _due_in(self) -> float:
        return float("inf") if self.next_at is None else max(0.0, self.next_at - self._clock())
