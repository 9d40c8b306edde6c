"""The progress of batches for pages that refresh. Some stores read each task, so a read is reused for a while."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from qo.client.batches import LISTED_TASKS, BatchProgress, find_batch, list_batches
from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Counts, Filter

_AGE_FACTOR = 5.0  # a read is reused for this many times its duration
_MAX_AGE = 60.0  # seconds
_MAX_READS = 256  # distinct requests whose last read is kept
T = TypeVar("T")


class _LastRead:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # concurrent requests share one read
        self.value: Any = None
        self.until = float("-inf")


class BatchReader:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: OrderedDict[tuple[object, ...], _LastRead] = OrderedDict()

    async def newest(self, where: Filter, *, limit: int, among: int = LISTED_TASKS) -> list[BatchProgress]:
        """As `list_batches`."""
        key = ("newest", where, limit, among)
        return await self._reused(key, lambda: list_batches(self._engine, limit, where, among=among))

    async def progress(self, name: str, where: Filter) -> BatchProgress:
        """As `find_batch`."""
        return await self._reused(("progress", name, where), lambda: find_batch(self._engine, name, where))

    async def counts(self, batch: str) -> Counts:
        """The counts of a batch in the whole store."""
        return await self._reused(("counts", batch), lambda: self._engine.count(batch))

    async def _reused(self, key: tuple[object, ...], read: Callable[[], Awaitable[T]]) -> T:
        last = self._reads.setdefault(key, _LastRead())
        self._reads.move_to_end(key)
        while len(self._reads) > _MAX_READS:
            self._reads.popitem(last=False)
        async with last.lock:
            began = boot_clock()
            if began >= last.until:
                last.value = await read()
                ended = boot_clock()
                last.until = ended + min(_MAX_AGE, _AGE_FACTOR * (ended - began))
            value: T = last.value
            return value
