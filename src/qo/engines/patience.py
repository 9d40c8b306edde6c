"""Patience with a store that stumbles, for requests that may be repeated: reads, removals, writes over anything.

A write over a known version is not one of them: see `qo.buckets.own_writes`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qo.clock import boot_clock
from qo.errors import Refused, StorageError
from qo.ids import luck

Answer = TypeVar("Answer")

_TRIES = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 1.0  # seconds, times chance
_OPENING = 3.0  # seconds a store that is just starting, or stumbles, is waited for when it is opened
_OPENING_PAUSE, _LONGEST_OPENING_PAUSE = 0.05, 0.5  # seconds, times chance


async def patiently_opened(request: Callable[[], Awaitable[Answer]]) -> Answer:
    """The first request to a store: made again for a few seconds, unless the store refuses it."""
    until, pause = boot_clock() + _OPENING, _OPENING_PAUSE
    while True:
        try:
            return await request()
        except Refused:
            raise
        except StorageError:
            if boot_clock() + pause > until:
                raise
            await asyncio.sleep(pause * (0.5 + luck()))
            pause = min(2 * pause, _LONGEST_OPENING_PAUSE)


async def patiently(request: Callable[[], Awaitable[Answer]], *, patience: float = 0.0) -> Answer:
    """Ask again while the store cannot be reached: 20 times, and for at least `patience` seconds."""
    pause, tries, until = _FIRST_PAUSE, 1, asyncio.get_running_loop().time() + patience
    while tries < _TRIES or asyncio.get_running_loop().time() < until:
        tries += 1
        try:
            return await request()
        except Refused:
            raise
        except StorageError:
            await asyncio.sleep(pause * luck())
            pause = min(2 * pause, _LONGEST_PAUSE)
    return await request()
