"""The image that the bucket holds: downloads and uploads of the database, when, and which process may write it.

A store in mode `local` answers before the bucket has its changes, and loses them if another process writes the object
first. So each flush reserves the object for a term, and every other process refuses to write until the term ends.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.clock import Clock, iso
from qo.engines.commit_loop import PendingCall
from qo.engines.requests import retry, retry_opening
from qo.engines.sqlite_object.image import Image, is_written_by
from qo.errors import InvalidSetting, Refused, StorageError
from qo.ids import new_token
from qo.model import ANY, UNREADABLE

log = logging.getLogger("qo.engines.sqlite_object")
_WARN_AFTER_FAILURES = 3  # in a row, which takes about 200 ms
NOTE = "local-store"
_MIN_TERM = 30.0  # seconds after a flush
_TERM_INTERVALS = 3.0  # a term lasts three flush intervals, if that is longer


class StoredImage:
    """The last image that the bucket is known to hold. Reads in mode `durable` see only this one."""

    def __init__(self, bucket: Bucket, key: str, clock: Clock) -> None:
        self._bucket, self._key, self._clock = bucket, key, clock
        self.version = ""  # of the object; empty: unknown
        self.data = b""
        self._number = 0
        self._image: Image | None = None  # opened by the first read: a program that only submits needs none
        self._adoptions = 0
        self._download: asyncio.Task[None] | None = None
        self._next_download: asyncio.Task[None] | None = None

    @property
    def image(self) -> Image:
        if self._image is None:
            self._image = Image(self._key, self.data, self._clock, is_ours=bool(self.data))
        return self._image

    def adopt(self, data: bytes, version: str, number: int) -> None:
        """Record what the bucket holds: an upload was confirmed, or a download found it."""
        self._close_image()
        self.data, self.version, self._number = data, version, number
        self._adoptions += 1

    def suspect(self) -> None:
        """Download again before the next use."""
        self.version = ""

    async def finish(self) -> None:
        """Wait for downloads whose callers were cancelled."""
        while downloads := [task for task in (self._download, self._next_download) if task is not None]:
            await asyncio.wait(downloads)

    def close(self) -> None:
        self.suspect()
        self._close_image()
        self.data = b""

    def _close_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None

    async def refresh(self) -> None:
        """Download what the bucket holds now. All callers share the next download; a running one may be too old."""
        if self._next_download is None:
            self._next_download = asyncio.create_task(self._download_after(self._download))
            self._next_download.add_done_callback(_ignore_error)
        await asyncio.shield(self._next_download)

    async def _download_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._download, self._next_download = self._next_download, None
        try:
            await self.download()
        finally:
            self._download = None

    async def download(self, *, is_opening: bool = False) -> None:
        adoptions = self._adoptions
        blob = await (retry_opening if is_opening else retry)(self._get)
        data, version = (b"", NEW) if blob is None else (blob.data, blob.version)
        if version == self.version:
            return
        if blob is not None and not data:
            raise StorageError(f"{self._key} is empty; restore an older version, or delete it to start over")
        image = Image(self._key, data, self._clock)
        number = image.number()
        if self._adoptions != adoptions and number <= self._number:
            image.close()  # an upload was confirmed during this download, which is older
            return
        self.adopt(data, version, number)
        self._image = image

    async def _get(self) -> Blob | None:
        return await self._bucket.get(self._key)


def _ignore_error(download: asyncio.Task[None]) -> None:
    """All callers may have been cancelled, and asyncio logs errors that nothing retrieves."""
    if not download.cancelled():
        download.exception()


class Upload:
    """One write of the image over a known version."""

    def __init__(self, bucket: Bucket, key: str, image: Image) -> None:
        self._bucket, self._key = _LoggingBucket(bucket), key
        self.data, self.write = image.encode()
        self.version = ""  # of the object, once it is written; SUPERSEDED: another process has written since

    async def send(self, *, expected: str, retry_timeout: float) -> None:
        """Raises what `put_document` raises."""
        self.version = await put_document(
            self._bucket,
            self._key,
            self.data,
            expected=expected,
            is_ours=lambda stored: is_written_by(stored, self.write),
            retry_timeout=retry_timeout,
        )


class _LoggingBucket:
    """Logs repeated failures of writes, because a caller may wait for them without a time limit."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._failures = 0
        self.get, self.delete, self.versions, self.now = bucket.get, bucket.delete, bucket.versions, bucket.now

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        try:
            return await self._bucket.put(key, data, expected=expected)
        except StorageError as error:
            self._failures += 1
            level = logging.WARNING if self._failures == _WARN_AFTER_FAILURES else logging.DEBUG
            log.log(level, "%s could not be written; retrying: %s", key, error)
            raise

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)


class Owner(Struct, frozen=True, kw_only=True):
    id: str = ""
    host: str = ""
    pid: int = 0
    pid_namespace: str = ""  # process ids are unique only within a namespace
    until: float = 0.0  # by the store's clock


def new_owner() -> Owner:
    return Owner(id=new_token(), host=socket.gethostname(), pid=os.getpid(), pid_namespace=_pid_namespace())


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return ""


def term_of(interval: float) -> float:
    """How many seconds after a flush the object stays owned."""
    return max(_MIN_TERM, _TERM_INTERVALS * interval) if interval < float("inf") else _MIN_TERM


def own(image: Image, owner: Owner) -> None:
    """Record the owner in the next upload."""
    data = msgspec.json.encode(owner)
    image.do([PendingCall(lambda table: table.write_note(NOTE, data, ANY))])


def disown(image: Image) -> None:
    image.do([PendingCall(lambda table: table.drop_note(NOTE))])


def check_owner(image: Image, key: str, now: float, own_id: str = "") -> None:
    """Raise Refused while another store, whose process may be alive, owns the object."""
    note = image.reader.read_note(NOTE)
    if note is None:
        return
    try:
        owner = msgspec.json.decode(note.data, type=Owner)
    except UNREADABLE:  # a damaged note does not block writers
        return
    if owner.id == own_id or owner.until <= now or _has_ended(owner):
        return
    raise Refused(
        f"{key} belongs to a store in mode `local` (process {owner.pid} on {owner.host}) until {iso(owner.until)}: "
        "another writer would discard changes that it has not flushed yet; close it, or open it in mode `durable`"
    )


def _has_ended(owner: Owner) -> bool:
    """Whether the owner's process ran on this machine and has ended."""
    if (owner.host, owner.pid_namespace) != (socket.gethostname(), _pid_namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def check_interval(interval: float) -> float:
    if not interval >= 0:
        raise InvalidSetting(f"interval={interval!r}: give the seconds between two flushes, or inf to flush by hand")
    return interval


def check_volume(volume: float) -> float:
    if not volume >= 1:
        raise InvalidSetting(
            f"volume={volume!r}: give the number of waiting calls after which a flush does not wait for the interval, "
            "at least 1"
        )
    return volume


class FlushTimer:
    """With an infinite interval only `trigger` starts a flush, so that tests control each step."""

    def __init__(self, interval: float, volume: float) -> None:
        self._interval, self._volume = interval, volume
        self._triggered = asyncio.Event()
        self._last = -float("inf")

    def trigger(self) -> None:
        """Flush now."""
        self._triggered.set()

    def count(self, waiting: int) -> None:
        """Flush now if this many waiting calls are enough."""
        if waiting >= self._volume:
            self._triggered.set()

    async def wait(self) -> None:
        """Return when it is time to flush."""
        loop = asyncio.get_running_loop()
        due_at = self._last + self._interval if self._interval < float("inf") else None
        if due_at is None or due_at > loop.time():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._triggered.wait()
        self._triggered.clear()
        self._last = loop.time()
