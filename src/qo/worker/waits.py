"""How a worker waits: for its store, which may be slow, unreachable or frozen, for a stop, and for background tasks.

Every wait for the store is bounded.

`asyncio.timeout` does not suffice for a bounded wait. It waits until the cancelled call has ended, and a driver may
wait for the server's answer to the cancellation.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from qo.backoff import Backoff
from qo.errors import NewerFormat, QoError, StorageError

T = TypeVar("T")
log = logging.getLogger("qo.worker")
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.1, 5.0  # seconds between attempts while the store is unreachable
CANCEL_TIMEOUT = 0.5  # seconds for cancelled background tasks to end
_DURATION_FACTOR = 2400  # an idle worker waits this many times the duration of the last call


class WorkerStuck(QoError):
    """The worker cannot continue: its store does not answer, or its handlers block too many threads."""


class WorkerCancelled(WorkerStuck):
    """A handler cancelled tasks of the worker's own event loop."""


# --- for the store


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

    async def answered(self, what: str, call: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
        """The answer of a call. Raises WorkerStuck after `stuck_after` seconds, without waiting for the call to end."""
        task = asyncio.ensure_future(call)
        try:
            if await ended([task], self._stuck_after):
                return task.result()
        finally:
            abandon([task])
        raise WorkerStuck(f"the store has not answered {what} for {self._stuck_after:g} s")

    def succeeded(self) -> None:
        self._backoff.reset()


def idle_interval(took: float, shortest: float, longest: float) -> float:
    """Seconds an idle worker waits after a call that took `took` seconds, between `shortest` and `longest`.

    A call of a file or a server nearby takes about a millisecond. A call of a cloud store takes about 25 and costs
    money. The measured duration tells them apart, so engines need not declare their cost.
    """
    return min(longest, max(shortest, _DURATION_FACTOR * took))


# --- for anything, for a bounded time


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


# --- for a stop


class StopSignal:
    """The requests to stop and to abort.

    `wake` is set with each of them, so that the claim loop sees it immediately.
    """

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def abort(self) -> None:
        self.stop()
        self._aborting.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_aborting(self) -> bool:
        return self._aborting.is_set()

    async def aborted(self) -> None:
        """Wait for an abort."""
        await self._aborting.wait()

    async def limit(self, work: Coroutine[Any, Any, None], timeout: float) -> None:
        """Await `work`. After a stop wait at most `timeout` more seconds, after an abort not at all."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._wait_after_stop(timeout))
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            abandon([working, stopped])

    async def _wait_after_stop(self, timeout: float) -> None:
        await self._stopping.wait()
        await bounded(self.aborted(), timeout)


# --- background work


@contextlib.asynccontextmanager
async def in_background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run `work` in tasks that are cancelled when the block ends."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await ended(tasks, CANCEL_TIMEOUT)
        abandon(tasks)


async def unless_failed(main: Coroutine[Any, Any, None], background: list[asyncio.Task[None]]) -> None:
    """Run `main` to completion, unless a background task ends first. Raises what that task raised."""
    running = asyncio.create_task(main)
    try:
        await asyncio.wait([running, *background], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not running.done():
            running.cancel()
            await ended([running], CANCEL_TIMEOUT)
        abandon([running])
    for task in [*background, running]:
        if task.done() and task.cancelled():
            raise WorkerCancelled("a background task of the worker was cancelled; restart the worker")
        if task.done():
            task.result()
