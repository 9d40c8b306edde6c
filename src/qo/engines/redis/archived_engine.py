"""Redis for what is under way, an archive for what is finished, and one engine over both.

A finished task is kept in the archive first and forgotten by Redis second, so it is always in at least one of them;
where it is in both, Redis has the last word. Only finished tasks move, so the two rules stay Redis' own; a task that
is to change again (replay, archive) is taken back first.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence

from qo.clock import Clock
from qo.engine import Engine, Snapshot
from qo.engines.redis.archive import Archive
from qo.engines.redis.engine import RedisEngine
from qo.engines.redis.task_fields import KeptTask
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
_INTERVAL = 5.0  # seconds between two moves
_SETTLED = 5.0  # seconds a task stays in Redis after it has ended: callers still ask for its result
_PAGE = 500


class ArchivingEngine(ForwardingEngine):
    def __init__(self, redis: RedisEngine, archive: Archive, clock: Clock) -> None:
        super().__init__(redis)
        self._redis, self._archive, self._clock = redis, archive, clock
        self._mover: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # what is being taken back is not moved away meanwhile

    async def open(self) -> None:
        await self._redis.open()
        await self._archive.open()

    async def close(self) -> None:
        mover, self._mover = self._mover, None
        if mover is not None:
            mover.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await mover
        try:
            await self._archive.close()
        finally:
            await self._redis.close()

    # --- moving

    async def _move_on(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                while await self.move() == _PAGE:
                    pass
            except StorageError as error:
                log.warning("finished tasks stay in Redis for now: %s", error)

    async def move(self, settled: float = _SETTLED) -> int:
        """Move one page of tasks that ended a while ago; how many it was."""
        async with self._turn:
            tasks = await self._redis.find(Filter(finished_for=settled), limit=_PAGE)
            if tasks:
                await self._archive.keep(await self._redis.whole(tasks))
                await self._redis.evict(tasks)
            return len(tasks)

    async def _take_back(self, task: Task) -> None:
        events, rest = await self._archive.history(task.id), await self._archive.rest(task.id)
        await self._redis.restore(KeptTask(task, events, rest))
        await self._archive.drop([task.id])

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(new.id for new in tasks)
        async with self._turn:
            last = await self._redis.followers([new.id for new in tasks if new.idempotency_key is not None])
            kept = await self._kept([*(new.id for new in tasks), *last])
            for task in kept.values():  # so that one script decides, on one clock
                await self._take_back(task)
            return await self._redis.add(tasks)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self._mover is None:
            self._mover = asyncio.get_running_loop().create_task(self._move_on())
        answers = await self._redis.apply(changes)
        refused = [at for at, landed in enumerate(answers) if not landed]
        if refused:
            async with self._turn:
                kept = await self._kept([changes[at].id for at in refused])
                for at in refused:
                    if (task := kept.get(changes[at].id)) is not None:
                        answers[at] = await self._apply_to_kept(task, changes[at])
        return answers

    async def _apply_to_kept(self, task: Task, change: Change) -> bool:
        if not allows(task, change, self._clock()):
            return is_repeat(task, change)
        await self._take_back(task)
        (landed,) = await self._redis.apply([change])
        return landed

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        async with self._turn:
            deleted = await self._redis.delete(ids)
            there = {task_id for task_id, task in zip(ids, await self._redis.get(ids), strict=True) if task}
            dropped = await self._archive.drop([task_id for task_id in ids if task_id not in there])
        return [done or task_id in dropped for task_id, done in zip(ids, deleted, strict=True)]

    # --- reading

    async def _kept(self, ids: Sequence[str]) -> dict[str, Task]:
        """Those in the archive alone. Asked first of all: what is kept now cannot be missing from both."""
        kept = await self._archive.get(ids) if ids else {}
        here = await self._redis.get(list(kept))
        return {task_id: kept[task_id] for task_id, task in zip(kept, here, strict=True) if task is None}

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        found = await self._redis.get(ids)
        missing = [task_id for task_id, task in zip(ids, found, strict=True) if task is None]
        kept = await self._archive.get(missing) if missing else {}
        return [task or kept.get(task_id) for task_id, task in zip(ids, found, strict=True)]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        kept = await self._archive.find(where, limit=limit, start=page_start(after, created_before), now=self._clock())
        here = await self._redis.find(where, limit=limit, after=after, created_before=created_before)
        stale = [task for task in await self._redis.get([task.id for task in kept]) if task]
        moved = {task.id: task for task in kept}
        for task in stale:
            del moved[task.id]
        both = [*here, *moved.values()]
        return sorted(both, key=lambda task: (task.created_at, task.id), reverse=True)[:limit]

    async def snapshot(self) -> Snapshot:
        return await Engine.snapshot(self)  # of both, page by page

    async def get_without_values(self, ids: Sequence[str]) -> list[Task | None]:
        return await Engine.get_without_values(self, ids)  # of both, a few at a time

    async def find_without_values(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await Engine.find_without_values(self, where, limit=limit, after=after, created_before=created_before)

    async def with_values(self, tasks: Sequence[Task]) -> list[Task]:
        return await Engine.with_values(self, tasks)

    async def count(self) -> Counts:
        return dict(Counter(await self._redis.count()) + Counter(await self._archive.count()))

    async def history(self, task_id: str) -> list[Event]:
        return await self._redis.history(task_id) or await self._archive.history(task_id)
