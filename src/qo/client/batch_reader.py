"""The progress of batches for pages that refresh. Some stores read each task, so a read is reused for a while."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from qo.client.batches import LISTED_TASKS, BatchProgress, find_batch, list_batches
from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Counts, Filter

_AGE_FACTOR = 5.0  # a read is reused for this many times its duration
_MAX_AGE = 60.0  # seconds
_MAX_READS = 256  # distinct requests whose last read is kept
_MAX_CONCURRENT_READS = 8
T = TypeVar("T")


class _LastRead:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # of callers that start a read; concurrent requests share it
        self.reading: asyncio.Task[Any] | None = None
        self.value: Any = None
        self.until = float("-inf")


class BatchReader:
    """A read continues if its caller is cancelled, so that the next request can use a read that outlasts its caller.

    A batch without tasks is read again each time: it may be about to begin.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._reads: OrderedDict[tuple[object, ...], _LastRead] = OrderedDict()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_READS)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def newest(self, where: Filter, *, limit: int, among: int = LISTED_TASKS) -> list[BatchProgress]:
        """As `list_batches`."""
        key = ("newest", where, limit, among)
        return await self.reuse(key, lambda: list_batches(self._engine, limit, where, among=among), lambda _: True)

    async def progress(self, name: str, where: Filter) -> BatchProgress:
        """As `find_batch`."""
        key = ("progress", name, where)
        return await self.reuse(key, lambda: find_batch(self._engine, name, where), lambda found: found.total > 0)

    async def counts(self, batch: str) -> Counts:
        """The counts of a batch in the whole store."""
        return await self.reuse(("counts", batch), lambda: self._engine.count(batch), bool)

    async def close(self) -> None:
        """Cancel the reads in progress."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def reuse(
        self, key: tuple[object, ...], read: Callable[[], Coroutine[Any, Any, T]], is_reusable: Callable[[T], bool]
    ) -> T:
        """What another request with this key has read recently, or `read()`. A value can be refused for reuse."""
        last = self._reads.setdefault(key, _LastRead())
        self._reads.move_to_end(key)
        while len(self._reads) > _MAX_READS:
            self._reads.popitem(last=False)
        for is_last in (False, True):
            async with last.lock:
                if last.reading is None and boot_clock() < last.until:
                    kept: T = last.value
                    return kept
                is_shared = last.reading is not None
                reading = last.reading or await self._start(last, read, is_reusable)
            value: T = await asyncio.shield(reading)
            if is_last or not is_shared or is_reusable(value):
                break  # a read that began before this call and found nothing may have missed the batch
        return value

    async def _start(
        self, last: _LastRead, read: Callable[[], Coroutine[Any, Any, T]], is_reusable: Callable[[T], bool]
    ) -> asyncio.Task[T]:
        """Start a read when one of the slots is free. A caller that is cancelled before starts none."""
        await self._slots.acquire()
        last.reading = task = asyncio.create_task(self._read(last, read, is_reusable))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._end(last, task))
        return task

    async def _read(
        self, last: _LastRead, read: Callable[[], Coroutine[Any, Any, T]], is_reusable: Callable[[T], bool]
    ) -> T:
        began = boot_clock()
        value = await read()
        ended = boot_clock()
        if is_reusable(value):
            last.value, last.until = value, ended + min(_MAX_AGE, _AGE_FACTOR * (ended - began))
        return value

    def _end(self, last: _LastRead, task: asyncio.Task[Any]) -> None:
        self._slots.release()
        self._tasks.discard(task)
        last.reading = None
        if not task.cancelled():
            task.exception()  # the callers that still wait receive it
