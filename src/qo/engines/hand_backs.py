"""What becomes of a claim whose caller is cancelled: its tasks are released at once, without a failed attempt.

Kept, they would wait until their leases run out, and that counts as a failure.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from qo.errors import QoError
from qo.model import Change, Task, release


class HandBacks:
    """Releases tasks in the background, through `apply`. If that fails, the leases run out."""

    def __init__(self, apply: Callable[[Sequence[Change]], Awaitable[list[bool]]]) -> None:
        self._apply = apply
        self._running: set[asyncio.Task[None]] = set()

    async def claim(self, work: Coroutine[Any, Any, list[Task]]) -> list[Task]:
        """The tasks that `work` claims. If the caller is cancelled, the work is finished and its tasks go back."""
        claiming = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            self._start(self._after(claiming))
            raise

    def start(self, tasks: Sequence[Task]) -> None:
        """Hand back tasks that nobody will get."""
        if tasks:
            self._start(self._release(tasks))

    async def finish(self, *, timeout: float | None = None) -> None:
        """Wait until the tasks are back."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _after(self, claiming: "asyncio.Future[list[Task]]") -> None:
        await asyncio.wait([claiming])
        if not claiming.cancelled() and claiming.exception() is None and claiming.result():
            await self._release(claiming.result())

    async def _release(self, tasks: Sequence[Task]) -> None:
        with suppress(QoError):
            await self._apply([release(task, None) for task in tasks])
