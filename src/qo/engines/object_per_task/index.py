"""The index. An entry is written before the state that needs it, and removed after it, in the background.

The name of an entry holds the hash of its lane (queue, type and needs), and its content the names.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct

from qo.bucket import ANY, Bucket
from qo.clock import boot_clock
from qo.damage import Quarantine
from qo.engines.object_per_task.keys import Entry, entry_of, lane_hash
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.requests import in_parallel, retry
from qo.errors import StorageError
from qo.model import UNREADABLE, Task

Value = TypeVar("Value")

log = logging.getLogger("qo.engines")

_MAX_CACHED_KEYS, _MAX_CACHED_LANES = 50_000, 100_000
_MAX_REMOVALS = 64  # at the same time
_REMOVAL_GRACE = 60.0  # the process that changed a task removes its old entry within this time
_FIRST_SUSPECT_PERIOD, _MAX_SUSPECT_PERIOD = 0.1, 60.0  # an entry without a task is ignored for this long


class Index:
    def __init__(self, bucket: Bucket, quarantine: Quarantine) -> None:
        self._bucket, self._quarantine = bucket, quarantine
        self._stale: OrderedDict[str, float] = OrderedDict()  # by key: since when it is known to be stale
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MAX_REMOVALS)
        self._suspects: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by key: ignored until, period
        self.on_write: Callable[[Entry], None] = lambda _: None

    async def write(self, key: str, content: bytes) -> None:
        if removal := self._removals.get(key):  # two writes share a name only if the clock stands still
            await asyncio.wait([removal])
        self._stale.pop(key, None)
        self._suspects.pop(key, None)
        await retry(lambda: self._bucket.put(key, content, expected=ANY))

    def announce(self, key: str) -> None:
        """Notify `on_write` that the state that needs this entry is written."""
        if entry := entry_of(key):
            self.on_write(entry)

    def remove(self, key: str) -> None:
        """Remove the entry in the background. If that fails, the entry is stale and is removed when it is found."""
        if key in self._removals:
            return
        self.disregard(key)
        removal = asyncio.ensure_future(self._remove(key))
        self._removals[key] = removal
        removal.add_done_callback(lambda _: self._removals.pop(key, None))

    def disregard(self, key: str) -> None:
        """Ignore an entry that is stale and that another process is about to remove."""
        _remember(self._stale, key, boot_clock())
        self._suspects.pop(key, None)

    async def _remove(self, key: str) -> None:
        async with self._slots:
            try:
                await retry(lambda: self._bucket.delete(key))
            except StorageError as error:
                log.warning("%s could not be removed and stays as a stale entry: %s", key, error)

    async def finish(self) -> None:
        """Wait until all removals are done."""
        while self._removals:
            await asyncio.wait(list(self._removals.values()))

    def suspect(self, key: str, *, is_damaged: bool = False) -> None:
        """Ignore an entry without a task for a while: its submission is in progress, or was interrupted.

        The period doubles each time. The entry of a damaged task is ignored for the longest period immediately, because
        many of them must not delay other tasks.
        """
        _, period = self._suspects.pop(key, (0.0, _FIRST_SUSPECT_PERIOD / 2))
        period = _MAX_SUSPECT_PERIOD if is_damaged else period
        period = min(2 * period, _MAX_SUSPECT_PERIOD)
        _remember(self._suspects, key, (boot_clock() + period, period))

    def is_removed(self, key: str) -> bool:
        """Whether the entry is removed or about to be."""
        return key in self._stale

    def is_usable(self, key: str) -> bool:
        if key in self._stale:
            return False
        return key not in self._suspects or self._suspects[key][0] <= boot_clock()

    async def read(
        self, prefix: str, *, after: str = "", limit: int | None = None, until: Callable[[Entry], bool] | None = None
    ) -> "IndexPage":
        """Read up to `limit` entries in order, and stop before the first for which `until` is true."""
        return await retry(lambda: self._read(prefix, after, limit, until))

    async def _read(
        self, prefix: str, after: str, limit: int | None, until: Callable[[Entry], bool] | None
    ) -> "IndexPage":
        page = IndexPage()
        async with _closing(self._bucket.keys(prefix, after=after)) as keys:
            async for key in keys:
                entry = entry_of(key)
                if entry is None:
                    self._quarantine.put(key, "its name is not that of an index entry")
                elif until is not None and until(entry):
                    page.stopped_at = entry
                    return page
                elif self.is_usable(key):
                    page.entries.append(entry)
                elif boot_clock() - self._stale.get(key, boot_clock()) > _REMOVAL_GRACE:
                    self.remove(key)  # the process that should have removed it did not
                page.read, page.last = page.read + 1, key
                if page.read == limit:
                    page.is_full = True
                    return page
        return page


class IndexPage:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.read = 0
        self.last = ""
        self.is_full = False  # there may be more entries
        self.stopped_at: Entry | None = None


@asynccontextmanager
async def _closing(keys: AsyncIterator[str]) -> AsyncIterator[AsyncIterator[str]]:
    """Close an unfinished listing now instead of when it is garbage-collected."""
    try:
        yield keys
    finally:
        if isinstance(keys, AsyncGenerator):
            await keys.aclose()


def _remember(cache: OrderedDict[str, Value], key: str, value: Value) -> None:
    cache[key] = value
    if len(cache) > _MAX_CACHED_KEYS:
        cache.popitem(last=False)


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
        names = LaneNames(queue=task.queue, type=task.type, needs=task.stored_needs)
        self._keep(lane_hash(task.queue, task.type, task.stored_needs), names)
        return msgspec.json.encode(names)

    def names(self, entry: Entry) -> LaneNames | None:
        return self._names.get(entry.lane)

    async def load(self, entries: Iterable[Entry]) -> None:
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
            names = LaneNames(queue=task.queue, type=task.type, needs=task.stored_needs)
        self._keep(lane_hash(names.queue, names.type, names.needs), names)

    def _keep(self, lane: str, names: LaneNames) -> None:
        if len(self._names) >= _MAX_CACHED_LANES:
            self._names.clear()
        self._names[lane] = names
