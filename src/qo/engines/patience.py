"""Patience with a store that stumbles, for requests that may be repeated: reads, removals, writes over anything.

A write over a known version is not one of them: see `qo.buckets.own_writes`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from qo.errors import Refused, StorageError
from qo.ids import luck

Answer = TypeVar("Answer")

_TRIES = 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 1.0  # seconds, times chance


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
