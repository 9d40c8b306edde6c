"""The layout: its options, its format, which an object next to the tasks records, and the objects that its parts share.

A bucket cannot check the format on every write, so processes rely on time. Before it writes, a process reads the format
again if its last reading is older than `CHECK_INTERVAL`. A newer build that excludes older ones records its format
first, and then writes nothing until every older process must have read it (`_GRACE`). Any other process that finds such
a recent format waits as well.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec
from msgspec import Struct

from qo.bucket import NEW, Blob, Bucket
from qo.clock import Clock, boot_clock
from qo.damage import Quarantine
from qo.engines.object_per_task.index import Index, LaneDirectory
from qo.engines.object_per_task.task_store import TaskStore
from qo.engines.requests import retry
from qo.errors import Conflict, Refused, StorageError
from qo.formats import Format, check_format, format_of
from qo.model import UNREADABLE

FORMAT_KEY = "format.json"
FORMAT = 2  # see docs/formats.md; 1: before `successor`
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and preserve
CHECK_INTERVAL = 10.0
_GRACE = CHECK_INTERVAL + 10.0  # requests of older builds may still be in flight


class _RecordedFormat(Format, frozen=True, kw_only=True):
    upgraded_from: int = 0  # the previous format, if this one replaced it


_decoder = msgspec.json.Decoder(_RecordedFormat)


class StoredFormat:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._replaces = ""  # the version of the format object to replace; empty: no write needed
        self._found_format = 0
        self._excludes_older = False  # recording the format excludes older builds that may be running
        self._pause = 0.0  # until the builds that another process excluded must have read the format
        self._lock = asyncio.Lock()
        self.checked_at = boot_clock()

    async def check(self) -> None:
        """Raise Refused if a newer qo has written a format that this build must not touch."""
        asked_at = boot_clock()
        blob = await retry(lambda: self._bucket.get(FORMAT_KEY))
        if blob is None:
            self._replaces, self._excludes_older = NEW, False
        else:
            self._examine(blob)
        self.checked_at = asked_at

    def _examine(self, blob: Blob) -> None:
        try:
            found = _decoder.decode(blob.data)
        except UNREADABLE as error:
            raise StorageError(f"{FORMAT_KEY} does not hold a format; examine it and move it away: {error}") from error
        check_format(f"the queue of {FORMAT_KEY}", found, FORMAT)
        is_older = found.format < FORMAT
        self._found_format = found.format
        self._replaces = blob.version if is_older else ""
        since = format_of(FORMAT, additive=ADDITIVE).since
        self._excludes_older = is_older and since > found.format
        is_upgraded = found.format == FORMAT and 0 < found.upgraded_from < since
        age = self._bucket.now() - blob.written_at
        self._pause = min(_GRACE, max(0.0, _GRACE - age)) if is_upgraded else 0.0

    async def prepare_write(self) -> None:
        """Call before every write. Records the format if there is none or an older one; reading changes nothing."""
        if not self._replaces and not self._pause and boot_clock() - self.checked_at < CHECK_INTERVAL:
            return
        async with self._lock:
            if boot_clock() - self.checked_at >= CHECK_INTERVAL:
                await self.check()
            if self._replaces:
                await self._record()
            if self._pause:
                await asyncio.sleep(self._pause)
                self._pause = 0.0

    async def _record(self) -> None:
        expected, excludes_older = self._replaces, self._excludes_older
        data = msgspec.json.encode(
            _RecordedFormat(
                **msgspec.structs.asdict(format_of(FORMAT, additive=ADDITIVE)),
                upgraded_from=0 if expected == NEW else self._found_format,
            )
        )
        try:
            await self._bucket.put(FORMAT_KEY, data, expected=expected)
            self._replaces = ""
        except Refused:  # this process may only write tasks; another one records the format
            self._replaces = ""
        except Conflict:  # another process recorded it first
            await self.check()
        if excludes_older:
            self._pause = _GRACE


class FormatCheckedBucket:
    """Forwards every call, and checks the format before writes."""

    def __init__(self, bucket: Bucket, stored: StoredFormat) -> None:
        self._bucket, self._stored = bucket, stored
        self.get, self.versions, self.now = bucket.get, bucket.versions, bucket.now

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await self._stored.prepare_write()
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await self._stored.prepare_write()
        await self._bucket.delete(key)

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)


class IndexMode(StrEnum):
    INDEX_ONLY = "index-only"  # claims use only the index
    HYBRID = "hybrid"  # also reads some tasks from time to time, to find those that the index lacks
    LOG_SCAN = "log-scan"  # claims read the tasks themselves: slow, for a damaged index


class TasksOptions(Struct, frozen=True, kw_only=True):
    index_mode: IndexMode = IndexMode.HYBRID
    ready_page_size: int = 1000  # entries read at a time; a store lists up to a thousand per request
    log_scan_page_size: int = 50  # tasks read by one scan
    scan_interval: float = 3600.0  # seconds between scans
    promotion_interval: float = 10.0  # seconds between reads of promoted tasks in a deep queue
    shards: tuple[str, ...] = ()  # claims take only ids that start with one of these digits; empty: all


@dataclass(frozen=True, slots=True)
class TasksLayout:
    bucket: Bucket
    documents: TaskStore
    index: Index
    lanes: LaneDirectory
    quarantine: Quarantine
    clock: Clock


def open_layout(bucket: Bucket, clock: Clock | None) -> TasksLayout:
    """Uses the bucket's clock unless a clock is given."""
    quarantine = Quarantine()
    documents = TaskStore(bucket, quarantine)
    return TasksLayout(
        bucket, documents, Index(bucket, quarantine), LaneDirectory(bucket, documents), quarantine, clock or bucket.now
    )
