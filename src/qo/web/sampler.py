"""Counts, read every few seconds by a task of its own: what requests and rates are answered from."""

import asyncio
import contextlib
import logging
from collections import deque

from msgspec import Struct

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Counts, Status
from qo.web.series import Series
from qo.web.survey import Survey, Waiting

log = logging.getLogger("qo.web")
MINUTE = 60.0


class Sample(Struct, frozen=True, kw_only=True):
    at: float  # by the boot clock
    counts: Counts
    waiting: Waiting

    def total(self, status: Status) -> int:
        return sum(number for lane, number in self.counts.items() if lane.status is status)


class Grown(Struct, frozen=True, kw_only=True):
    """What came to be between two samples."""

    at: float
    completed: int
    failed: int


class Sampler:
    def __init__(self, engine: Engine, *, interval: float, clock: Clock) -> None:
        self._engine, self._interval, self._clock = engine, interval, clock
        self._survey = Survey(engine)
        self._under_way: asyncio.Task[Sample] | None = None
        self._grown: deque[Grown] = deque()
        self.latest: Sample | None = None
        self.series = Series()
        self.cost = 0.0  # seconds the last sample took to take

    async def run(self) -> None:
        while True:
            try:
                await self.fresh(self._interval / 2)
            except StorageError as error:
                log.warning("the store is away: %s", error)
            await asyncio.sleep(self._interval)

    async def fresh(self, most: float) -> Sample:
        """A sample at most so many seconds old. Whoever asks while one is taken waits for that one."""
        if self.latest is not None and boot_clock() - self.latest.at <= most:
            return self.latest
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._take())
        return await asyncio.shield(self._under_way)

    async def finish(self) -> None:
        await self.series.finish()
        if self._under_way is not None:
            with contextlib.suppress(Exception):  # whoever asked was told
                await self._under_way

    async def _take(self) -> Sample:
        began = boot_clock()
        counts = await self._engine.count()
        pending = sum(number for lane, number in counts.items() if lane.status is Status.PENDING)
        sample = Sample(at=boot_clock(), counts=counts, waiting=await self._survey.look(pending, self._clock()))
        if self.latest is not None:
            self._grown.append(grown := _grown(self.latest, sample))
            self.series.grew(self._clock(), grown.completed, grown.failed)
        else:
            self.series.grew(self._clock(), 0, 0)
        while self._grown and self._grown[0].at < sample.at - MINUTE:
            self._grown.popleft()
        self.latest, self.cost = sample, boot_clock() - began
        return sample

    def last_minute(self) -> Grown:
        now = boot_clock()
        recent = [grown for grown in self._grown if grown.at >= now - MINUTE]
        return Grown(at=now, completed=sum(g.completed for g in recent), failed=sum(g.failed for g in recent))


def _grown(before: Sample, after: Sample) -> Grown:
    """Growth lane by lane: tasks that are archived or deleted meanwhile are not taken off what others completed."""
    grown = {Status.COMPLETED: 0, Status.FAILED: 0}
    for lane, number in after.counts.items():
        if lane.status in grown:
            grown[lane.status] += max(0, number - before.counts.get(lane, 0))
    return Grown(at=after.at, completed=grown[Status.COMPLETED], failed=grown[Status.FAILED])
