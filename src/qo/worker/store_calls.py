"""Calls of a store that may be slow, unreachable or frozen: back-off, idle intervals and bounded waits.

`asyncio.timeout` does not suffice for a bounded wait. It waits until the cancelled call has ended, and a driver may
wait for the server's answer to the cancellation.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any

from qo.backoff import Backoff
from qo.errors import NewerFormat, QoError, StorageError

log = logging.getLogger("qo.worker")
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.1, 5.0  # seconds between attempts while the store is unreachable
_DURATION_FACTOR = 2400  # an idle worker waits this many times the duration of the last call


class WorkerStuck(QoError):
    """The worker cannot continue: its store does not answer, or its handlers block too many threads."""


class StoreCalls:
    """The calls of one worker. They share one back-off."""

    def __init__(self, is_stopping: Callable[[], bool], *, stuck_after: float) -> None:
        self._is_stopping, self._stuck_after = is_stopping, stuck_after
        self._backoff = Backoff(_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE)

    async def attempt(self, call: Callable[[], Awaitable[object]]) -> None:
        """Await `call()`. If the store is unreachable, log a warning and back off; the caller retries later."""
        try:
            await call()
        except StorageError as error:
            await self.back_off(error)

    async def back_off(self, error: StorageError) -> None:
        """Log the error and wait. Raises NewerFormat: this version of qo cannot read the store, so no retry helps."""
        if isinstance(error, NewerFormat) and not self._is_stopping():
            raise error
        pause = self._backoff.next()
        log.warning("the store is unreachable; retrying in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)

    @asynccontextmanager
    async def answered(self, what: str) -> AsyncIterator[None]:
        """Raise WorkerStuck if the calls in the block take longer than `stuck_after`."""
        try:
            async with asyncio.timeout(self._stuck_after):
                yield
        except TimeoutError:
            raise WorkerStuck(f"the store has not answered {what} for {self._stuck_after:g} s") from None

    def succeeded(self) -> None:
        self._backoff.reset()


def idle_interval(took: float, shortest: float, longest: float) -> float:
    """Seconds an idle worker waits after a call that took `took` seconds, between `shortest` and `longest`.

    A call of a file or a server nearby takes about a millisecond. A call of a cloud store takes about 25 and costs
    money. The measured duration tells them apart, so engines need not declare their cost.
    """
    return min(longest, max(shortest, _DURATION_FACTOR * took))


async def bounded(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Await `work` for at most `seconds`, then cancel it without waiting for it to finish.

    Returns True if it ended in time.

    Raises what `work` raises.
    """
    task = asyncio.ensure_future(work)
    try:
        if await ended([task], seconds):
            task.result()
            return True
    finally:
        abandon([task])
    return False


async def ended(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait for all `tasks` for at most `seconds`. Returns True if all have ended."""
    waiting = [task for task in tasks if not task.done()]
    return not waiting or not (await asyncio.wait(waiting, timeout=seconds))[1]


async def first(waits: Iterable[Awaitable[object]], timeout: float | None = None) -> None:
    """Wait until one of `waits` has ended, at most `timeout` seconds, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def abandon(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel the tasks that still run, and silence warnings about them and about errors that were not retrieved."""
    for task in tasks:
        if task.done():
            _ignore(task)
        else:
            task.cancel()
            task.add_done_callback(_ignore)
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - no public way


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
