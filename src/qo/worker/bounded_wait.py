"""Waiting that ends. A store that accepts everything and answers nothing must not keep a worker from ending.

`asyncio.timeout` is not enough for that: it waits until the cancelled call has ended, and a driver may wait for the
server's answer to the cancellation.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def bounded(work: Coroutine[Any, Any, Any], seconds: float) -> bool:
    """Await `work` for at most `seconds`, then cancel it and go on without it. True: it ended in time."""
    task = asyncio.ensure_future(work)
    try:
        if await ended([task], seconds):
            task.result()
            return True
    finally:
        abandon([task])
    return False


async def ended(tasks: Iterable[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait for all of them for at most `seconds`."""
    waiting = [task for task in tasks if not task.done()]
    return not waiting or not (await asyncio.wait(waiting, timeout=seconds))[1]


def abandon(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel what still runs; its loop closes without a complaint about it, or about an error that nobody asked for."""
    for task in tasks:
        if task.done():
            _ignore(task)
        else:
            task.cancel()
            task.add_done_callback(_ignore)
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it was given up on


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
