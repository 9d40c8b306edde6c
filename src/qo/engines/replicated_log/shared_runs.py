"""One run of an operation for all callers that ask while another run is on its way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


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
        return await asyncio.shield(self._next)

    async def _run_after(self, before: "asyncio.Task[T] | None") -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        try:
            return await self._operation()
        finally:
            self._running = None

    async def finish(self) -> None:
        """Wait for runs whose callers were cancelled."""
        while runs := [task for task in (self._running, self._next) if task is not None]:
            await asyncio.wait(runs)


def _ignore_error(run: "asyncio.Task[T]") -> None:
    """All callers may have been cancelled, and asyncio logs errors that nothing retrieves."""
    if not run.cancelled():
        run.exception()
