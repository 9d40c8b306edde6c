"""Index entries: written before the state that needs them, removed after it, in the background."""

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

_MOST_REMEMBERED = 50_000
_REMOVALS_AT_ONCE = 64
_CLEANING = 60.0  # seconds: whoever changed a task is given so long to clean up behind itself
_FIRST_DOUBT, _LONGEST_DOUBT = 0.1, 60.0  # seconds an entry without a task is not looked at again


class Index:
    def __init__(self, bucket: Bucket, quarantine: Quarantine) -> None:
        self._bucket, self._quarantine = bucket, quarantine
        self._rubbish: OrderedDict[str, float] = OrderedDict()  # removed or about to be, and since when that is known
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_REMOVALS_AT_ONCE)
        self._doubts: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key: (not before, pause)
        self.on_write: Callable[[Entry], None] = lambda _: None

    async def write(self, key: str, content: bytes) -> None:
        if removal := self._removals.get(key):  # only with a clock that stands still do two writes share a name
            await asyncio.wait([removal])
        self._rubbish.pop(key, None)
        self._doubts.pop(key, None)
        await retry(lambda: self._bucket.put(key, content, expected=ANY))

    def announce(self, key: str) -> None:
        """The state that needs this entry is written."""
        if entry := entry_of(key):
            self.on_write(entry)

    def remove(self, key: str) -> None:
        """Soon. If it fails the entry is stale: harmless, and removed by whoever meets it."""
        if key in self._removals:
            return
        self.disregard(key)
        removal = asyncio.ensure_future(self._remove(key))
        self._removals[key] = removal
        removal.add_done_callback(lambda _: self._removals.pop(key, None))

    def disregard(self, key: str) -> None:
        """It stands for nothing any more, and someone is about to remove it."""
        _remember(self._rubbish, key, boot_clock())
        self._doubts.pop(key, None)

    async def _remove(self, key: str) -> None:
        async with self._slots:
            try:
                await retry(lambda: self._bucket.delete(key))
            except StorageError as error:
                log.warning("%s could not be removed and stays as stale: %s", key, error)

    async def finish(self) -> None:
        """Wait until everything removed is gone."""
        while self._removals:
            await asyncio.wait(list(self._removals.values()))

    def suspect(self, key: str, *, is_damaged: bool = False) -> None:
        """Its task is not there: the submission is under way, or ended half-way. Ever rarer looks will tell.

        A damaged task stays so until somebody restores it: looks at many of these must not hold up the others.
        """
        _, pause = self._doubts.pop(key, (0.0, _FIRST_DOUBT / 2))
        pause = _LONGEST_DOUBT if is_damaged else pause
        pause = min(2 * pause, _LONGEST_DOUBT)
        _remember(self._doubts, key, (boot_clock() + pause, pause))

    def is_removed(self, key: str) -> bool:
        """It is gone or about to be, and stands for nothing unless it is written again."""
        return key in self._rubbish

    def is_believable(self, key: str) -> bool:
        if key in self._rubbish:
            return False
        return key not in self._doubts or self._doubts[key][0] <= boot_clock()

    async def read(
        self, prefix: str, *, after: str = "", most: int | None = None, until: Callable[[Entry], bool] | None = None
    ) -> "IndexPage":
        """Entries in order: at most so many, and none behind the first for which `until` holds."""
        return await retry(lambda: self._read(prefix, after, most, until))

    async def _read(
        self, prefix: str, after: str, most: int | None, until: Callable[[Entry], bool] | None
    ) -> "IndexPage":
        page = IndexPage()
        async with _closing(self._bucket.keys(prefix, after=after)) as keys:
            async for key in keys:
                entry = entry_of(key)
                if entry is None:
                    self._quarantine.put(key, "it is not the name of an index entry")
                elif until is not None and until(entry):
                    page.stopped_at = entry
                    return page
                elif self.is_believable(key):
                    page.entries.append(entry)
                elif boot_clock() - self._rubbish.get(key, boot_clock()) > _CLEANING:
                    self.remove(key)  # whoever should have done it did not
                page.read, page.last = page.read + 1, key
                if page.read == most:
                    page.is_full = True
                    return page
        return page


class IndexPage:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.read = 0
        self.last = ""
        self.is_full = False  # there may be more
        self.stopped_at: Entry | None = None


@asynccontextmanager
async def _closing(keys: AsyncIterator[str]) -> AsyncIterator[AsyncIterator[str]]:
    """A listing left half-way is ended here, not when it is collected."""
    try:
        yield keys
    finally:
        if isinstance(keys, AsyncGenerator):
            await keys.aclose()


def _remember(memory: OrderedDict[str, Value], key: str, what: Value) -> None:
    memory[key] = what
    if len(memory) > _MOST_REMEMBERED:
        memory.popitem(last=False)
