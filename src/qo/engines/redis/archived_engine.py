"""An engine that keeps unfinished tasks in Redis and moves finished ones to an archive.

A finished task is written to the archive before Redis evicts it, so at least one of them always has it; if both do, the
version in Redis is the valid one. Only finished tasks move, so Redis alone decides claims and guards. A task that
changes after it was moved (replay, archive) is first restored to Redis.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence

from qo.clock import Clock, boot_clock
from qo.engine import Engine, Snapshot
from qo.engines.redis.archive import Archive
from qo.engines.redis.engine import RedisEngine
from qo.engines.redis.task_fields import TaskRecord
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import (
    Added,
    Change,
    Counts,
    Event,
    Filter,
    NewTask,
    Task,
    allows,
    check_distinct,
    is_repeat,
    page_start,
)

log = logging.getLogger("qo.archive")
_MOVE_INTERVAL = 5.0  # seconds
_MIN_AGE = 5.0  # seconds that a finished task stays in Redis, because callers soon read its result
_PAGE_SIZE = 500
_MAX_MOVE_TIME = 30.0  # seconds; half as long as the marker of an evicted task exists (lua/evict.lua)


class ArchivingEngine(ForwardingEngine):
    def __init__(
        self, redis: RedisEngine, archive: Archive, clock: Clock, *, move_interval: float = _MOVE_INTERVAL
    ) -> None:
        super().__init__(redis)
        self.redis, self.archive, self._clock = redis, archive, clock
        self._move_interval = move_interval
        self._mover: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()  # so that a task is not moved away while it is being restored
        self._counting = asyncio.Lock()  # of counts, so that only one of them waits for `_moving` before an add

    async def open(self) -> None:
        await self.redis.open()
        await self.archive.open()

    async def close(self) -> None:
        mover, self._mover = self._mover, None
        if mover is not None:
            mover.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await mover
        try:
            await self.archive.close()
        finally:
            await self.redis.close()

    # --- moving

    async def _move_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._move_interval)
            try:
                while await self.move() == _PAGE_SIZE:
                    pass
            except StorageError as error:
                log.warning("finished tasks could not be moved to the archive and stay in Redis: %s", error)

    async def move(self, min_age: float = _MIN_AGE) -> int:
        """Move one page of tasks that finished at least `min_age` seconds ago. Returns their number."""
        async with self._moving:
            began = boot_clock()
            tasks = await self.redis.find(Filter(finished_for=min_age), limit=_PAGE_SIZE)
            if tasks:
                await self.archive.save(await self.redis.read_records(tasks))
                changed, missing = await self.redis.evict(tasks)
                # A task that is missing without a marker was deleted in the meantime, unless its marker has expired.
                outdated = changed | missing if boot_clock() - began < _MAX_MOVE_TIME else changed
                if outdated:
                    await self.archive.withdraw([task for task in tasks if task.id in outdated])
            return len(tasks)

    async def _restore(self, task: Task) -> None:
        events, unknown_fields = await self.archive.history(task.id), await self.archive.unknown_fields(task.id)
        await self.redis.restore(TaskRecord(task, events, unknown_fields))
        await self.archive.delete([task.id])

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(new.id for new in tasks)
        async with self._moving:
            last = await self.redis.followers([new.id for new in tasks if new.idempotency_key is not None])
            archived = await self._only_archived([*(new.id for new in tasks), *last])
            for task in archived.values():  # so that the add script sees every task under these ids and keys
                await self._restore(task)
            return await self.redis.add(tasks)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self._mover is None:
            self._mover = asyncio.get_running_loop().create_task(self._move_repeatedly())
        answers = await self.redis.apply(changes)
        refused = [number for number, is_applied in enumerate(answers) if not is_applied]
        if refused:
            async with self._moving:
                archived = await self._only_archived([changes[number].id for number in refused])
                for number in refused:
                    if (task := archived.get(changes[number].id)) is not None:
                        answers[number] = await self._apply_to_archived(task, changes[number])
        return answers

    async def _apply_to_archived(self, task: Task, change: Change) -> bool:
        if not allows(task, change, self._clock()):
            return is_repeat(task, change)
        await self._restore(task)
        (is_applied,) = await self.redis.apply([change])
        return is_applied

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        async with self._moving:
            deleted = await self.redis.delete(ids)
            in_redis = {task_id for task_id, task in zip(ids, await self.redis.get(ids), strict=True) if task}
            from_archive = await self.archive.delete([task_id for task_id in ids if task_id not in in_redis])
        return [is_deleted or task_id in from_archive for task_id, is_deleted in zip(ids, deleted, strict=True)]

    # --- reading

    async def _only_archived(self, ids: Sequence[str]) -> dict[str, Task]:
        """The tasks that the archive has and Redis does not."""
        archived = await self.archive.get(ids) if ids else {}
        in_redis = await self.redis.get(list(archived))
        return {task_id: archived[task_id] for task_id, task in zip(archived, in_redis, strict=True) if task is None}

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        found = await self.redis.get(ids)
        missing = [task_id for task_id, task in zip(ids, found, strict=True) if task is None]
        archived = await self.archive.get(missing) if missing else {}
        return [task or archived.get(task_id) for task_id, task in zip(ids, found, strict=True)]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        archived = await self.archive.find(where, limit=limit, start=start, now=self._clock())
        in_redis = await self.redis.find(where, limit=limit, after=after, created_before=created_before)
        outdated = {task.id for task in await self.redis.get([task.id for task in archived]) if task}
        both = [*in_redis, *(task for task in archived if task.id not in outdated)]
        return sorted(both, key=lambda task: (task.created_at, task.id), reverse=True)[:limit]

    # The forwarded versions of these methods would read Redis alone.

    async def snapshot(self) -> Snapshot:
        return await Engine.snapshot(self)

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await Engine.get_without_values(self, ids)

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await Engine.find_without_values(self, where, limit=limit, after=after, created_before=created_before)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        return await Engine.with_values(self, tasks)

    async def count(self, batch: str | None = None) -> Counts:
        # A task that moves between the two reads would be counted twice.
        async with self._counting, self._moving:
            return dict(Counter(await self.redis.count(batch)) + Counter(await self.archive.count(batch)))

    async def history(self, task_id: str) -> list[Event]:
        return await self.redis.history(task_id) or await self.archive.history(task_id)
