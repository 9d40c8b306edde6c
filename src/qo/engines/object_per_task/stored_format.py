"""The format of the layout, in an object of its own beside the tasks.

A bucket cannot check it with every write, so time does. Every process reads the format again before it writes, once the
last reading is `CHECK_INTERVAL` old. A newer build that shuts older ones out records its format first, and writes
nothing else before the older ones must have read it (`_GRACE`); nor does any other process that finds it so young.
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec

from qo.bucket import NEW, Blob, Bucket
from qo.clock import boot_clock
from qo.engines.retry import retry
from qo.errors import Conflict, Refused, StorageError
from qo.formats import Format, check_format, format_of
from qo.model import UNREADABLE

KEY = "format.json"
FORMAT = 2  # see docs/formats.md; 1: before `successor`
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and keep
CHECK_INTERVAL = 10.0  # seconds
_GRACE = CHECK_INTERVAL + 10.0  # seconds: a request that an older build has just sent may take a while


class _RecordedFormat(Format, frozen=True, kw_only=True):
    upgraded_from: int = 0  # the format before, if this one was written over it


_decoder = msgspec.json.Decoder(_RecordedFormat)


class StoredFormat:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._over = ""  # the version of the object to write the format over; empty: it is as it should be
        self._found_format = 0
        self._shuts_out = False  # writing it makes builds that may be at work here stop
        self._pause = 0.0  # seconds until the builds that another process has shut out must know
        self._turn = asyncio.Lock()
        self.checked_at = boot_clock()

    async def check(self) -> None:
        """Raise Refused if a newer qo has written here, in a way that this one must not touch."""
        asked_at = boot_clock()
        blob = await retry(lambda: self._bucket.get(KEY))
        if blob is None:
            self._over, self._shuts_out = NEW, False
        else:
            self._judge(blob)
        self.checked_at = asked_at

    def _judge(self, blob: Blob) -> None:
        try:
            found = _decoder.decode(blob.data)
        except UNREADABLE as error:
            raise StorageError(f"{KEY} does not hold a format; look at it and move it away: {error}") from error
        check_format(f"the queue of {KEY}", found, FORMAT)
        is_older = found.format < FORMAT
        self._found_format = found.format
        self._over = blob.version if is_older else ""
        since = format_of(FORMAT, additive=ADDITIVE).since
        self._shuts_out = is_older and since > found.format
        is_upgraded = found.format == FORMAT and 0 < found.upgraded_from < since
        age = self._bucket.now() - blob.written_at
        self._pause = min(_GRACE, max(0.0, _GRACE - age)) if is_upgraded else 0.0

    async def prepare_write(self) -> None:
        """Before every write. Records the format where there is none or an older one: reading changes nothing."""
        if not self._over and not self._pause and boot_clock() - self.checked_at < CHECK_INTERVAL:
            return
        async with self._turn:
            if boot_clock() - self.checked_at >= CHECK_INTERVAL:
                await self.check()
            if self._over:
                await self._record()
            if self._pause:
                await asyncio.sleep(self._pause)
                self._pause = 0.0

    async def _record(self) -> None:
        expected, shuts_out = self._over, self._shuts_out
        data = msgspec.json.encode(
            _RecordedFormat(
                **msgspec.structs.asdict(format_of(FORMAT, additive=ADDITIVE)),
                upgraded_from=0 if expected == NEW else self._found_format,
            )
        )
        try:
            await self._bucket.put(KEY, data, expected=expected)
            self._over = ""
        except Refused:  # this process may only write tasks: others record the format
            self._over = ""
        except Conflict:  # another process was first
            await self.check()
        if shuts_out:
            self._pause = _GRACE


class FormatCheckedBucket:
    """Passes everything on; writes only where this build may still write."""

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
