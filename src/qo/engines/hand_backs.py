"""Releases the tasks of a claim whose caller was cancelled. An expired lease would count as a failed attempt."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from qo.errors import QoError
from qo.model import Change, Task, release


class HandBacks:
    """Releases tasks in the background, with `apply`. If that fails, their leases expire."""

    def __init__(self, apply: Callable[[Sequence[Change]], Awaitable[list[bool]]]) -> None:
        self._apply = apply
        self._running: set[asyncio.Task[None]] = set()

    async def claim(self, work: Coroutine[Any, Any, list[Task]]) -> list[Task]:
        """Return the tasks that `work` claims. If the caller is cancelled, they are released when the work ends."""
        claiming = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._start(self._release_result(claiming))
            raise

    def start(self, tasks: Sequence[Task]) -> None:
        """Start to release tasks that no caller gets."""
        if tasks:
            self._start(self._release(tasks))

    async def finish(self, *, timeout: float | None = None) -> None:
        """Wait until all tasks are released."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _release_result(self, claiming: "asyncio.Future[list[Task]]") -> None:
        await asyncio.wait([claiming])
        if not claiming.cancelled() and claiming.exception() is None and claiming.result():
            await self._release(claiming.result())

    async def _release(self, tasks: Sequence[Task]) -> None:
        with suppress(QoError):
            await self._apply([release(task, None) for task in tasks])
