"""The index. An entry is written before the state that needs it, and removed after it, in the background."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from qo.bucket import ANY, Bucket
from qo.clock import boot_clock
from qo.engines.object_per_task.keys import Entry, entry_of
from qo.engines.quarantine import Quarantine
from qo.engines.retry import retry
from qo.errors import StorageError

Value = TypeVar("Value")

log = logging.getLogger("qo.engines")

_MAX_CACHED_KEYS = 50_000
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

        The period doubles each time. The entry of a damaged task is ignored for the longest period at once, because
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
