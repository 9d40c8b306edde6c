"""Counts, read every few seconds by a task of its own: what requests are answered from."""

import asyncio
import contextlib
import logging

from msgspec import Struct

from qo.clock import Clock, boot_clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Counts, Status
from qo.web.callers import WHOLE_STORE, AccessLimits
from qo.web.stats.ready_survey import ReadyCounts, ReadySurvey

log = logging.getLogger("qo.web")


class Sample(Struct, frozen=True, kw_only=True):
    at: float  # by the boot clock
    counts: Counts
    waiting: ReadyCounts

    def total(self, status: Status) -> int:
        return sum(number for lane, number in self.counts.items() if lane.status is status)


class Sampler:
    def __init__(self, engine: Engine, *, interval: float, clock: Clock, limits: AccessLimits = WHOLE_STORE) -> None:
        self._engine, self._interval, self._clock, self._limits = engine, interval, clock, limits
        self._survey = ReadySurvey(engine, limits)
        self._under_way: asyncio.Task[Sample] | None = None
        self.latest: Sample | None = None
        self.cost = 0.0  # seconds the last sample took to take

    async def run(self) -> None:
        while True:
            try:
                await self.fresh(self._interval / 2)
            except StorageError as error:
                log.warning("the store is unreachable: %s", error)
            await asyncio.sleep(self._interval)

    async def fresh(self, most: float) -> Sample:
        """A sample at most so many seconds old. Whoever asks while one is taken waits for that one."""
        if self.latest is not None and boot_clock() - self.latest.at <= most:
            return self.latest
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._take())
        return await asyncio.shield(self._under_way)

    async def finish(self) -> None:
        if self._under_way is not None:
            with contextlib.suppress(Exception):  # whoever asked was told
                await self._under_way

    async def _take(self) -> Sample:
        began = boot_clock()
        counts = self._limits.count(await self._engine.count())
        sample = Sample(at=boot_clock(), counts=counts, waiting=await self._survey.look(counts, self._clock()))
        self.latest, self.cost = sample, boot_clock() - began
        return sample
