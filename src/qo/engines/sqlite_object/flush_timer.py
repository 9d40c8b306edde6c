"""When to flush: so long after the last time, earlier if much is waiting or someone asks for it.

An infinite interval leaves it to whoever asks: so tests go step by step.
"""

import asyncio
from contextlib import suppress

from qo.errors import InvalidSetting


def check_interval(interval: float) -> float:
    if not interval >= 0:
        raise InvalidSetting(f"interval={interval!r}: give seconds from one flush to the next, or inf to flush by hand")
    return interval


def check_volume(volume: float) -> float:
    if not volume >= 1:
        raise InvalidSetting(
            f"volume={volume!r}: give the number of waiting calls that no interval holds back, from 1 on"
        )
    return volume


class FlushTimer:
    def __init__(self, interval: float, volume: float) -> None:
        self._interval, self._volume = interval, volume
        self._hurry = asyncio.Event()
        self._last = -float("inf")

    def hurry(self) -> None:
        self._hurry.set()

    def count(self, waiting: int) -> None:
        if waiting >= self._volume:
            self._hurry.set()

    async def turn(self) -> None:
        """Wait until it is time."""
        loop = asyncio.get_running_loop()
        due_at = self._last + self._interval if self._interval < float("inf") else None
        if due_at is None or due_at > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._hurry.wait()
        self._hurry.clear()
        self._last = loop.time()
