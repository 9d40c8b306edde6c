"""Lanes: queue, type and needs. An entry's name holds the hash of its lane, and its content the names."""

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

_MAX_CACHED_LANES = 100_000


class LaneNames(Struct, frozen=True, kw_only=True):
    queue: str
    type: str
    needs: tuple[str, ...] = ()


class LaneDirectory:
    def __init__(self, bucket: Bucket, documents: TaskStore) -> None:
        self._bucket, self._documents = bucket, documents
        self._names: dict[str, LaneNames] = {}
        # by lane; shards are read concurrently, and most contain the same lanes
        self._lookups: dict[str, asyncio.Lock] = {}

    def content(self, task: Task) -> bytes:
        """The content of the task's index entries."""
        names = LaneNames(queue=task.queue, type=task.type, needs=task.needs)
        self._learn(lane_hash(task.queue, task.type, task.needs), names)
        return msgspec.json.encode(names)

    def names(self, entry: Entry) -> LaneNames | None:
        return self._names.get(entry.lane)

    async def learn(self, entries: Iterable[Entry]) -> None:
        """Look up lanes that are not cached: one request each, once per process."""
        unknown = {entry.lane: entry for entry in entries if entry.lane not in self._names}
        if unknown:
            await in_parallel(self._look_up_once, list(unknown.values()))

    async def _look_up_once(self, entry: Entry) -> None:
        """Look up a lane once: concurrent callers wait for the first, and try themselves only if it fails."""
        async with self._lookups.setdefault(entry.lane, asyncio.Lock()):
            if entry.lane not in self._names:
                await self._look_up(entry)
        if entry.lane in self._names:
            self._lookups.pop(entry.lane, None)

    async def _look_up(self, entry: Entry) -> None:
        blob = await retry(lambda: self._bucket.get(entry.key))
        try:
            names = None if blob is None else msgspec.json.decode(blob.data, type=LaneNames)
        except UNREADABLE:
            names = None  # the entry is damaged; the task itself holds the names
        if names is None or lane_hash(names.queue, names.type, names.needs) != entry.lane:
            stored = await self._documents.read(entry.id)
            if stored is None:
                return
            task = stored.task
            names = LaneNames(queue=task.queue, type=task.type, needs=task.needs)
        self._learn(lane_hash(names.queue, names.type, names.needs), names)

    def _learn(self, lane: str, names: LaneNames) -> None:
        if len(self._names) >= _MAX_CACHED_LANES:
            self._names.clear()
        self._names[lane] = names
