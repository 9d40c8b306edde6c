"""The checkpoint of a shard: the floor, and the images from which a replica can be loaded.

It is the only object of a shard that is ever replaced, always by compare-and-set. It is created before the log can be
found, so a missing checkpoint is damage and never a new log: a writer that treated it as a new log would start a second
history at number 1. A new field needs a new format of the log, because a build that does not know the field drops it.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from qo.backoff import Backoff
from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.damage import check_seal, sealed
from qo.engines.replicated_log.keys import checkpoint_key
from qo.engines.requests import retry
from qo.errors import Conflict, Refused, StorageError
from qo.ids import new_token
from qo.model import UNREADABLE

KEPT_IMAGES = 2  # a damaged image has a predecessor, and a loader finishes before its image is deleted
_KEPT_WRITE_IDS = 8  # other processes may write this often before a lost response is resolved
_MAX_READS = 3  # of a checkpoint that cannot be decoded: the response may be damaged, not the object
_MAX_RACES = 50
_FIRST_DELAY, _MAX_DELAY = 0.02, 1.0


class DamagedCheckpoint(Refused):
    """The checkpoint of a shard is missing or cannot be read."""


class LogImage(Struct, frozen=True, kw_only=True):
    """A complete image of a shard's tables, stored in parts."""

    seq: int  # of the last record that it contains
    id: str  # of that record
    token: str  # in the names of its parts, so that the parts of two images never mix
    parts: int
    bytes: int  # stored
    raw_bytes: int  # of the SQLite file
    schema: int


class LogCheckpoint(Struct, frozen=True, kw_only=True):
    version: int = 1  # grows with every write
    floor: int = 1  # the lowest number that may still be written or read as a record; it never decreases
    images: tuple[LogImage, ...] = ()  # the newest first
    writes: tuple[str, ...] = ()  # the ids of the last writes, the latest last

    @property
    def newest_image(self) -> LogImage | None:
        return self.images[0] if self.images else None

    def with_floor(self, floor: int) -> "LogCheckpoint":
        return replace(self, floor=max(self.floor, floor))

    def with_image(self, image: LogImage) -> "LogCheckpoint":
        """Add an image and keep the two newest. Of several images at one number, the one that came first stays.

        An image that took so long that records after it were deleted is not added, because the log cannot be followed
        from it.
        """
        if image.seq + 1 < self.floor or any(known.seq == image.seq for known in self.images):
            return self
        newest_first = sorted((*self.images, image), key=lambda known: known.seq, reverse=True)
        return replace(self, images=tuple(newest_first[:KEPT_IMAGES]))

    def without_image(self, token: str) -> "LogCheckpoint":
        return replace(self, images=tuple(image for image in self.images if image.token != token))


class StoredCheckpoint(NamedTuple):
    checkpoint: LogCheckpoint
    version: str  # of the object
    written_at: float  # by the store's clock


class CheckpointStore:
    def __init__(self, bucket: Bucket, log: str, shard: int) -> None:
        self._bucket = bucket
        self.key = checkpoint_key(log, shard)

    async def create(self) -> None:
        """Write the checkpoint of a new shard. The creator of a log calls this before it writes `meta.json`."""
        await self._write(LogCheckpoint(writes=(new_token(),)), NEW)

    async def read(self) -> LogCheckpoint:
        """Raises DamagedCheckpoint if it is missing or cannot be read."""
        return (await self.load()).checkpoint

    async def load(self) -> StoredCheckpoint:
        """As `read`, with the version and the time of the write."""
        problem: object = ""
        for _ in range(_MAX_READS):
            blob = await retry(lambda: self._bucket.get(self.key))
            if blob is None:
                raise self._damaged("is missing")
            try:
                return _decoded(blob)
            except UNREADABLE as error:
                problem = error
        raise self._damaged(f"cannot be read ({problem})")

    async def change(self, how: Callable[[LogCheckpoint], LogCheckpoint]) -> LogCheckpoint:
        """Replace the checkpoint by `how(checkpoint)`, which is called again if another process has written first.

        Nothing is written if `how` returns its argument. The floor of the result is never lower than the stored one.
        Raises OutcomeUnknown if the write may have been applied.
        """
        backoff = Backoff(_FIRST_DELAY, _MAX_DELAY, jitter=(0.5, 1.5))
        for _ in range(_MAX_RACES):
            stored = await self.load()
            before = stored.checkpoint
            after = how(before).with_floor(before.floor)
            if after == before:
                return before
            try:
                return await self._write(_successor(before, after), stored.version)
            except Conflict:
                await asyncio.sleep(backoff.next())
        raise StorageError(f"other processes keep writing {self.key}; try again")

    async def touch(self) -> StoredCheckpoint:
        """Write the checkpoint unchanged, and read it back: its `written_at` is the store's time, at least."""
        stored = await self.load()
        with suppress(Conflict):  # another process has just written it, which has the same effect
            await self._write(_successor(stored.checkpoint, stored.checkpoint), stored.version)
        return await self.load()

    async def _write(self, checkpoint: LogCheckpoint, expected: str) -> LogCheckpoint:
        await put_document(
            self._bucket,
            self.key,
            sealed(msgspec.json.encode(checkpoint)),
            expected=expected,
            is_ours=lambda stored: _is_ours(stored, checkpoint),
        )
        return checkpoint

    def _damaged(self, problem: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(
            f"{self.key} {problem}; restore the newest version of this object (an older one may name deleted images)."
            f" Until then nothing can be added to the log, because its numbers could be used twice"
        )


def _successor(before: LogCheckpoint, after: LogCheckpoint) -> LogCheckpoint:
    writes = (*before.writes, new_token())[-_KEPT_WRITE_IDS:]
    return replace(after, version=before.version + 1, writes=writes)


def _decoded(blob: Blob) -> StoredCheckpoint:
    return StoredCheckpoint(_decode(blob.data), blob.version, blob.written_at)


def _decode(data: bytes) -> LogCheckpoint:
    if not check_seal(data):
        raise ValueError("it has no checksum")
    return msgspec.json.decode(data, type=LogCheckpoint)


def _is_ours(stored: bytes, written: LogCheckpoint) -> bool | None:
    try:
        found = _decode(stored)
    except UNREADABLE:
        return None
    if written.writes[-1] in found.writes:
        return True
    return False if 0 <= found.version - written.version < _KEPT_WRITE_IDS else None
