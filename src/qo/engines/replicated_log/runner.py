"""Where the blocking work of a replica runs: in a thread, or immediately in tests and simulations."""

import asyncio
from collections.abc import Callable
from itertools import cycle
from typing import Protocol, TypeVar

T = TypeVar("T")
_MAX_INLINE_BYTES = 64 * 1024
_MAX_SHARED = 9  # a shard takes four, so neighbours share different ones


class Runner(Protocol):
    """Runs one function at a time. A function that has begun runs to completion, even if the caller is cancelled."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


async def run_inline(function: Callable[[], T], /) -> T:
    """Run the function on the event loop."""
    return function()


async def run_sized(runner: Runner, size: int, function: Callable[[], T]) -> T:
    """Run work on this many bytes: in the runner only if it would keep the event loop busy for long."""
    return await runner(function) if size > _MAX_INLINE_BYTES else function()


async def run_to_end(runner: Runner, function: Callable[[], T]) -> T:
    """Run the function. If the caller is cancelled, wait for the function first: its thread still uses the replica."""
    if runner is run_inline:
        return function()
    work = asyncio.ensure_future(runner(function))
    is_cancelled = False
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done() and work.cancelled():
                raise
            is_cancelled = True
        except BaseException:  # noqa: BLE001 - raised below
            break
    if is_cancelled:
        if not work.cancelled():
            work.exception()  # asyncio logs errors that nothing retrieves
        raise asyncio.CancelledError
    return work.result()


class SharedRunners:
    """The runners of a log with many shards: a few, which the shards share."""

    def __init__(self, new_runner: Callable[[], Runner]) -> None:
        self._runners = cycle([new_runner() for _ in range(_MAX_SHARED)])

    def next(self) -> Runner:
        return next(self._runners)
