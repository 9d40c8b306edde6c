"""Bounded waits: a store that does not answer must not keep a worker from ending.

`asyncio.timeout` does not suffice. It waits until the cancelled call has ended, and a driver may wait for the server's
answer to the cancellation.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def bounded(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Await `work` for at most `seconds`, then cancel it without waiting for its end. Returns True if it ended in time.

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
