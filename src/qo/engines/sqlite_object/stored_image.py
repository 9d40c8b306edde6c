"""The image that the bucket holds: downloads and uploads of the database."""

import asyncio
import logging
from collections.abc import AsyncIterator

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.clock import Clock
from qo.engines.retry import retry, retry_opening
from qo.engines.sqlite_object.image import Image, is_written_by
from qo.errors import StorageError

log = logging.getLogger("qo.engines.sqlite_object")
_WARN_AFTER_FAILURES = 3  # in a row, which takes about 200 ms


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
