"""The statistics of the last hour, which all processes that settle tasks count in the store."""

import asyncio
from collections.abc import Collection

from msgspec import Struct

from qo.client import Client
from qo.clock import Clock, boot_clock
from qo.errors import StorageError
from qo.stats import MINUTE, Interval, read_stats

MINUTES = 60
_COST_FACTOR = 3.0  # a read is reused for this many times its duration


class MinuteCount(Struct, frozen=True, kw_only=True):
    at: float  # start of the minute
    completed: int = 0
    failed: int = 0  # permanently


class RecentStats:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._minutes: list[Interval] = []
        self._read_at, self._took = float("-inf"), 0.0
        self._reading: asyncio.Task[list[Interval]] | None = None

    async def minutes(self, max_age: float = 0.0) -> list[Interval]:
        """The minutes in which tasks finished. Concurrent callers share one read."""
        if boot_clock() - self._read_at <= max(max_age, _COST_FACTOR * self._took):
            return self._minutes
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> list[Interval]:
        began = boot_clock()
        await self._client.recorder.flush()
        now = self._clock()
        found = await read_stats(self._client.engine, now - MINUTES * MINUTE, now)
        self._minutes = [interval for interval in found if interval.seconds == MINUTE]
        self._read_at = boot_clock()
        self._took = self._read_at - began
        return self._minutes

    async def series(self, types: Collection[str] = ()) -> list[MinuteCount]:
        """The last hour, oldest minute first, without gaps; of these types, or of all."""
        counted = {minute.start: _counted(minute, types) for minute in await self.minutes()}
        last = int(self._clock()) // MINUTE * MINUTE
        hour = (last - back * MINUTE for back in range(MINUTES - 1, -1, -1))
        return [counted.get(at) or MinuteCount(at=at) for at in hour]

    async def last_minute(self, types: Collection[str] = ()) -> MinuteCount:
        """The last 60 seconds: the current minute and a proportional share of the one before."""
        now = self._clock()
        before, current = (await self.series(types))[-2:]
        share = 1 - (now - current.at) / MINUTE
        return MinuteCount(
            at=now - MINUTE,
            completed=current.completed + round(share * before.completed),
            failed=current.failed + round(share * before.failed),
        )

    async def finish(self) -> None:
        """Wait for a read in progress."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
            if not self._reading.cancelled() and isinstance(self._reading.exception(), StorageError):
                return  # the caller has received the error


def _counted(minute: Interval, types: Collection[str]) -> MinuteCount:
    rows = [row for key, row in minute.rows.items() if not types or key.type in types]
    return MinuteCount(
        at=minute.start,
        completed=sum(row.completed for row in rows),
        failed=sum(sum(row.failed.values()) for row in rows),
    )
