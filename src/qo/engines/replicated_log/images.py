"""Images: the SQLite file of a shard in parts, so that neither writing nor loading holds the whole in memory."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import apsw

from qo.bucket import Blob, Bucket
from qo.engines.replicated_log.checkpoint import LogImage
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, create_frame, decode_frame, get_frame
from qo.engines.replicated_log.keys import FrameKind, image_key
from qo.engines.replicated_log.replica_file import PinnedReplica
from qo.engines.replicated_log.runner import Runner
from qo.engines.requests import retry
from qo.errors import Refused
from qo.formats import Format, check_format
from qo.ids import new_token
from qo.sqlite_tables.header import VERSION

PART_SIZE = 8 * 1024 * 1024  # raw bytes; a loader holds one part unpacked, and some compressed
_MAX_READS_AHEAD = 8
_MAX_CONCURRENT_WRITES = 4
_VACUUM_SHARE = 4  # vacuum if more than one page in four is empty


class DamagedImage(Refused):
    """A part of an image cannot be read, or is missing: it was lost, or the image was replaced and removed."""

    def __init__(self, key: str, problem: object, *, is_missing: bool = False) -> None:
        super().__init__(str(problem))
        self.key, self.is_missing = key, is_missing


class ImageParts:
    """The parts of the images of one shard. `run` executes blocking work: disk, compression."""

    def __init__(self, bucket: Bucket, log: str, shard: int, run: Runner) -> None:
        self._bucket, self._log, self._shard, self._run = bucket, log, shard, run

    def key(self, image: LogImage, part: int) -> str:
        return image_key(self._log, self._shard, image.seq, image.token, part)

    async def write(self, pinned: PinnedReplica, path: Path, *, writer: str) -> LogImage:
        """Copy a replica to `path`, close it, and store the copy.

        Processes use the image only once the checkpoint names it.
        """
        raw_bytes = await self._run(lambda: _copy(pinned, path))
        seq, record_id = pinned.position
        header = FrameHeader(
            FrameKind.IMAGE_PART,
            self._shard,
            seq,
            0,
            new_token(),
            previous=record_id,
            last_id=record_id,
            at=self._bucket.now(),
            writer=writer,
            schema=pinned.schema,
            schema_since=pinned.schema_since,
        )
        sizes = await self._write_parts(path, header)
        image = LogImage(
            seq=seq,
            id=record_id,
            token=header.id,
            parts=len(sizes),
            bytes=sum(sizes),
            raw_bytes=raw_bytes,
            schema=pinned.schema,
        )
        await self.check(image, image.parts - 1)
        return image

    async def _write_parts(self, path: Path, header: FrameHeader) -> list[int]:
        """The stored size of each part."""
        writes: list[asyncio.Task[int]] = []
        with path.open("rb") as file:
            try:
                while body := await self._run(lambda: file.read(PART_SIZE)):
                    part = len(writes)
                    key = image_key(self._log, self._shard, header.first, header.id, part)
                    frame = header._replace(last=part)
                    writes.append(asyncio.create_task(create_frame(self._bucket, key, frame, body, self._run)))
                    if part >= _MAX_CONCURRENT_WRITES:
                        await writes[part - _MAX_CONCURRENT_WRITES]
                return [await write for write in writes]
            finally:
                await cancel_all(writes)

    async def read(self, image: LogImage, path: Path, advance: Callable[[int], None]) -> None:
        """Write the SQLite file of an image to `path`, and call `advance` with the stored bytes of each part.

        Raises DamagedImage, and NewerFormat.
        """
        with path.open("wb") as file:
            async with aclosing(self._read_ahead(image)) as parts:
                async for part, blob in parts:
                    header, body = await self._decoded(image, part, blob)
                    _check(image, self.key(image, part), header)
                    await self._run(lambda body=body: file.write(body))  # type: ignore[misc]
                    advance(header.stored_bytes)
            size = file.tell()
        if size != image.raw_bytes:
            key = self.key(image, 0)
            raise DamagedImage(key, f"{key} and the parts after it have {size} bytes, not {image.raw_bytes}")

    async def _read_ahead(self, image: LogImage) -> AsyncGenerator[tuple[int, Blob | None]]:
        reads: deque[asyncio.Task[Blob | None]] = deque()
        try:
            for part in range(image.parts + _MAX_READS_AHEAD):
                if part < image.parts:
                    reads.append(asyncio.create_task(self._get(self.key(image, part))))
                if part >= _MAX_READS_AHEAD:
                    yield part - _MAX_READS_AHEAD, await reads.popleft()
        finally:
            await cancel_all(reads)

    async def _get(self, key: str) -> Blob | None:
        return await retry(lambda: self._bucket.get(key))

    async def _decoded(self, image: LogImage, part: int, blob: Blob | None) -> tuple[FrameHeader, bytes]:
        key = self.key(image, part)
        if blob is not None:
            with suppress(DamagedFrame):  # the response may be damaged, and not the object
                return await self._run(lambda: decode_frame(key, blob.data))
        return await self.check(image, part)

    async def check(self, image: LogImage, part: int) -> tuple[FrameHeader, bytes]:
        """Read one part. Raises DamagedImage."""
        key = self.key(image, part)
        try:
            frame = await get_frame(self._bucket, key, self._run)
        except DamagedFrame as error:
            raise DamagedImage(key, error) from error
        if frame is None:
            raise DamagedImage(key, f"{key} is missing", is_missing=True)
        return frame.header, frame.body


def _check(image: LogImage, key: str, header: FrameHeader) -> None:
    check_format(key, Format(format=header.schema, since=header.schema_since), VERSION)
    if header.last_id != image.id or header.schema != image.schema:
        raise DamagedImage(key, f"{key} is not a part of the image that the checkpoint names")


def _copy(pinned: PinnedReplica, path: Path) -> int:
    """Returns the size of the copy."""
    pinned.copy_to(path)
    pinned.close()  # while it is open, the write-ahead log of the replica only grows
    db = apsw.Connection(str(path))
    try:
        db.pragma("journal_mode", "delete")  # the parts are of one file, so nothing may be left in a log
        if db.pragma("freelist_count") * _VACUUM_SHARE > db.pragma("page_count"):
            db.execute("VACUUM")
    finally:
        db.close()
    return path.stat().st_size


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that are still running after an error, and wait for them."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # asyncio logs errors that nothing retrieves
