"""Shares one run of an operation between all callers that arrive while another run is in progress."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from qo.errors import StorageError

T = TypeVar("T")
_CLOSE_TIMEOUT = 30.0  # seconds


class SharedRuns(Generic[T]):
    """Callers share the next run. A run that has begun may have read the store before the caller asked."""

    def __init__(self, operation: Callable[[], Awaitable[T]]) -> None:
        self._operation = operation
        self._running: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def run(self) -> T:
        """The result of a run that begins after this call. A cancelled caller does not cancel it."""
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running))
            self._next.add_done_callback(_ignore_error)
        run = self._next
        try:
            return await asyncio.shield(run)
        except asyncio.CancelledError:
            if run.cancelled() and not _is_cancelled():
                raise StorageError("this queue was closed before the store answered") from None
            raise

    async def _run_after(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        try:
            return await self._operation()
        finally:
            self._running = None

    async def finish(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Wait for runs whose callers were cancelled. Those that take longer are cancelled."""

        async def end() -> None:
            while runs := self._unfinished():
                await asyncio.wait(runs)

        with suppress(TimeoutError):
            await asyncio.wait_for(end(), timeout)
        if runs := self._unfinished():
            for run in runs:
                run.cancel()
            await asyncio.wait(runs)
            self._running = self._next = None

    def _unfinished(self) -> "list[asyncio.Task[T]]":
        return [task for task in (self._running, self._next) if task is not None]


def _is_cancelled() -> bool:
    """Whether the caller itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ignore_error(run: "asyncio.Task[T]") -> None:
    """All callers may have been cancelled, and asyncio logs errors that nothing retrieves."""
    if not run.cancelled():
        run.exception()
