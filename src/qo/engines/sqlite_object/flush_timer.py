"""When to flush: an interval after the last flush, or earlier if many calls wait or a caller requests it."""

import asyncio
from contextlib import suppress

from qo.errors import InvalidSetting


def check_interval(interval: float) -> float:
    if not interval >= 0:
        raise InvalidSetting(f"interval={interval!r}: give the seconds between two flushes, or inf to flush by hand")
    return interval


def check_volume(volume: float) -> float:
    if not volume >= 1:
        raise InvalidSetting(
            f"volume={volume!r}: give the number of waiting calls after which a flush does not wait for the interval, "
            "at least 1"
        )
    return volume


class FlushTimer:
    """With an infinite interval only `trigger` starts a flush, so that tests control each step."""

    def __init__(self, interval: float, volume: float) -> None:
        self._interval, self._volume = interval, volume
        self._triggered = asyncio.Event()
        self._last = -float("inf")

    def trigger(self) -> None:
        """Flush now."""
        self._triggered.set()

    def count(self, waiting: int) -> None:
        """Flush now if this many waiting calls are enough."""
        if waiting >= self._volume:
            self._triggered.set()

    async def wait(self) -> None:
        """Return when it is time to flush."""
        loop = asyncio.get_running_loop()
        due_at = self._last + self._interval if self._interval < float("inf") else None
        if due_at is None or due_at > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._triggered.wait()
        self._triggered.clear()
        self._last = loop.time()
