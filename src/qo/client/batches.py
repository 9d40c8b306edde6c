"""Batches, groups of tasks that were submitted together:

their names, their progress, and waiting for them to finish.
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.engine import Engine
from qo.errors import ResultTimeout
from qo.ids import new_token
from qo.model import FINISHED, Counts, Filter, PendingKind, Status, check_batch_id, check_name

_SAMPLED_TASKS = 100  # finished tasks from which the remaining time is estimated
LISTED_TASKS = 1000  # newest tasks among which batches are listed
_MIN_POLL_INTERVAL, _MAX_POLL_INTERVAL = 0.05, 2.0
_PAUSE_FACTOR, _MAX_PAUSE = 10.0, 60.0  # the pause between two counts, as a multiple of the duration of one
_TOKEN = re.compile("-[0-9a-f]{8}")  # what `new_batch_id` adds to a name
_EVERYWHERE = Filter()
_AGE_FACTOR = 5.0  # a read is reused for this many times its duration
_MAX_AGE = 60.0  # seconds
_MAX_READS = 256  # distinct requests whose last read is kept
_MAX_CONCURRENT_READS = 8
T = TypeVar("T")


class BatchProgress(Struct, frozen=True, kw_only=True):
    """The tasks of a batch by status. `archived` tasks have finished, and count as done."""

    id: str
    total: int = 0
    pending: int = 0
    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    archived: int = 0
    eta: float | None = None  # estimated seconds until all tasks have finished; None if unknown

    @property
    def done(self) -> int:
        return self.completed + self.failed + self.cancelled + self.archived

    @property
    def fraction(self) -> float:
        """From 0 to 1; 0 for a batch without tasks."""
        return self.done / self.total if self.total else 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether a task has not finished."""
        return self.done < self.total

    @property
    def is_done(self) -> bool:
        """Whether all tasks that were submitted so far have finished."""
        return self.total > 0 and self.done == self.total


def new_batch_id(name: str) -> str:
    """A unique id for a batch, which begins with its name."""
    return f"{check_name('batch', name)}-{new_token()[:8]}"


def progress_of(batch: str, counts: Counts) -> BatchProgress:
    """Progress from the counts of a batch."""
    by_status: Counter[str] = Counter()
    for key, number in counts.items():
        by_status[key.status.value] += number
    fields: Mapping[str, int] = {status.value: by_status[status.value] for status in Status}
    return BatchProgress(id=batch, total=by_status.total(), **fields)


async def read_progress(engine: Engine, batch: str, where: Filter = _EVERYWHERE) -> BatchProgress:
    """The progress of a batch. `where` may name queues and types.

    It has an estimate of the remaining time if a task has finished and none is scheduled for later.
    """
    progress = await _count(engine, check_batch_id("batch", batch), where)
    left = progress.total - progress.done
    if not left or not progress.done or (progress.pending and await _has_scheduled(engine, batch, where)):
        return progress
    return replace(progress, eta=await remaining_time(engine, batch, left, where))


async def _has_scheduled(engine: Engine, batch: str, where: Filter) -> bool:
    """Whether a task is due later. Then the rate of finished tasks does not predict when the batch finishes."""
    later = replace(where, batch=batch, statuses=(Status.PENDING,), pending=(PendingKind.SCHEDULED,))
    return bool(await engine.find_without_values(later, limit=1))


async def find_batch(engine: Engine, name: str, where: Filter = _EVERYWHERE) -> BatchProgress:
    """The progress of the batch with this id, or of the newest one that `qo.batch(name)` created."""
    progress = await read_progress(engine, name, where)
    if progress.total:
        return progress
    for task in await engine.find_without_values(where, limit=LISTED_TASKS):
        if task.batch is not None and task.batch.startswith(name) and _TOKEN.fullmatch(task.batch, len(name)):
            return await read_progress(engine, task.batch, where)
    return progress


async def remaining_time(engine: Engine, batch: str, left: int, where: Filter = _EVERYWHERE) -> float | None:
    """Estimated seconds for `left` tasks, at the rate of the newest finished tasks."""
    where = replace(where, batch=batch, statuses=tuple(sorted(FINISHED)))
    finished = await engine.find_without_values(where, limit=_SAMPLED_TASKS)
    ends = [task.completed_at for task in finished if task.completed_at is not None]
    first = min((task.started_at or task.created_at for task in finished), default=0.0)
    duration = max(ends, default=0.0) - first
    return left * duration / len(ends) if ends and duration > 0 else None


async def list_batches(
    engine: Engine, limit: int = 50, where: Filter = _EVERYWHERE, *, among: int = LISTED_TASKS
) -> list[BatchProgress]:
    """The batches of the newest tasks that match, newest first, without estimates. `among`: how many tasks are read."""
    tasks = await engine.find_without_values(where, limit=among)
    names = list(dict.fromkeys(task.batch for task in tasks if task.batch is not None))[:limit]
    return await asyncio.gather(*(_count(engine, name, where) for name in names))  # some stores read once for all


async def _count(engine: Engine, batch: str, where: Filter) -> BatchProgress:
    covers = where.lane_matcher()
    counts = await engine.count(batch)
    return progress_of(batch, {key: number for key, number in counts.items() if covers(key.queue, key.type)})


async def wait_for_batch(engine: Engine, batch: str, timeout: float | None = None) -> BatchProgress:
    """Wait until no task of a batch is unfinished. Raises ResultTimeout."""
    backoff = Backoff(_MIN_POLL_INTERVAL, _MAX_POLL_INTERVAL)
    try:
        async with asyncio.timeout(timeout):
            while True:
                began = boot_clock()
                progress = progress_of(batch, await engine.count(batch))
                if not progress.is_waiting:
                    return progress
                await asyncio.sleep(pause_between(boot_clock() - began, backoff.next()))
    except TimeoutError as error:
        raise ResultTimeout(f"batch {batch} has unfinished tasks after {timeout:g} s") from error


def pause_between(duration: float, interval: float) -> float:
    """Seconds between two counts that take `duration`: at least `interval`, and longer if a count is expensive.

    The layout `tasks` has no index by batch, and reads every task for a count.
    """
    return max(interval, min(_MAX_PAUSE, _PAUSE_FACTOR * duration))


class _LastRead:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # held while a read starts; concurrent requests share the read
        self.reading: asyncio.Task[Any] | None = None
        self.value: Any = None
        self.until = float("-inf")


class BatchReader:
    """The progress of batches for pages that refresh. Some stores read each task, so a read is reused for a while.

    A read continues if its caller is cancelled, so that the next request can use a read that outlasts its caller.

    A batch without tasks is read every time, because its tasks may be about to be submitted.
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
        """The value that another request with this key has read recently, or `read()`.

        A value can be excluded from reuse.
        """
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
        """Start a read when a slot is free. A caller that is cancelled before that starts no read."""
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
            task.exception()  # the waiting callers receive it
