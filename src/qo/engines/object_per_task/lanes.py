"""Lanes: queue, type and needs. An entry's name holds only their hash; its content, the same for all, spells it out."""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from qo.bucket import Bucket
from qo.engines.object_per_task.keys import Entry, lane_hash
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry
from qo.model import UNREADABLE, Task

_MOST = 100_000


class LaneNames(Struct, frozen=True, kw_only=True):
    queue: str
    type: str
    needs: tuple[str, ...] = ()


class LaneDirectory:
    def __init__(self, bucket: Bucket, documents: TaskStore) -> None:
        self._bucket, self._documents = bucket, documents
        self._names: dict[str, LaneNames] = {}
        self._asking: dict[str, asyncio.Lock] = {}  # shards are read side by side, and most show the same lanes

    def content(self, task: Task) -> bytes:
        """What the task's index entries hold."""
        names = LaneNames(queue=task.queue, type=task.type, needs=task.needs)
        self._learn(lane_hash(task.queue, task.type, task.needs), names)
        return msgspec.json.encode(names)

    def names(self, entry: Entry) -> LaneNames | None:
        return self._names.get(entry.lane)

    async def learn(self, entries: Iterable[Entry]) -> None:
        """Look up the lanes not met before: one request each, once in a process's life."""
        unknown = {entry.lane: entry for entry in entries if entry.lane not in self._names}
        if unknown:
            await in_parallel(self._ask, list(unknown.values()))

    async def _ask(self, entry: Entry) -> None:
        """Whoever asks second waits for the first to know, and asks itself only if that failed."""
        async with self._asking.setdefault(entry.lane, asyncio.Lock()):
            if entry.lane not in self._names:
                await self._look_up(entry)
        if entry.lane in self._names:
            self._asking.pop(entry.lane, None)

    async def _look_up(self, entry: Entry) -> None:
        blob = await retry(lambda: self._bucket.get(entry.key))
        try:
            names = None if blob is None else msgspec.json.decode(blob.data, type=LaneNames)
        except UNREADABLE:
            names = None  # someone else wrote it; the task itself will tell
        if names is None or lane_hash(names.queue, names.type, names.needs) != entry.lane:
            kept = await self._documents.read(entry.id)
            if kept is None:
                return
            task = kept.task
            names = LaneNames(queue=task.queue, type=task.type, needs=task.needs)
        self._learn(lane_hash(names.queue, names.type, names.needs), names)

    def _learn(self, lane: str, names: LaneNames) -> None:
        if len(self._names) >= _MOST:
            self._names.clear()
        self._names[lane] = names
