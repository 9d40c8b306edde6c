"""The records of one shard: reads, and creations whose outcome is known."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, decode_frame, encode_frame
from qo.engines.replicated_log.keys import NO_ID, record_key
from qo.engines.replicated_log.runner import Runner, run_inline, run_sized
from qo.engines.requests import retry
from qo.errors import NewerFormat, OutcomeUnknown, Refused, StorageError

_MAX_READS = 3  # of a damaged record: the response may be damaged, not the object


class LogPosition(NamedTuple):
    """A place in the log: the number and the id of the last record that is included."""

    seq: int
    id: str


START = LogPosition(0, NO_ID)


class LogRecord(NamedTuple):
    """One commit, or several merged ones."""

    header: FrameHeader
    patchset: bytes


class DamagedRecord(Refused):
    """A record cannot be read or applied, so nothing after it can be read either."""

    key = ""  # of the record, if its object is damaged


class RecordStore:
    def __init__(
        self,
        bucket: Bucket,
        log: str,
        shard: int,
        failed: Callable[[], None] = lambda: None,
        *,
        run: Runner = run_inline,
    ) -> None:
        """`failed` is called after each request that failed, before it is repeated. `run` encodes and decodes."""
        self.bucket, self.shard, self._run = bucket, shard, run
        self._bucket, self._log = WatchedBucket(bucket, failed), log

    def key(self, seq: int) -> str:
        return record_key(self._log, self.shard, seq)

    async def get(self, seq: int) -> LogRecord | None:
        """The record, or None if it does not exist. Raises DamagedRecord, or NewerFormat."""
        key = self.key(seq)
        former = b""
        for _ in range(_MAX_READS):
            blob = await retry(lambda: self._bucket.get(key))
            if blob is None:
                return None
            try:
                return LogRecord(*await run_sized(self._run, len(blob.data), partial(decode_frame, key, blob.data)))
            except DamagedFrame as error:
                damage = error
            if blob.data == former:
                break
            former = blob.data
        damaged = DamagedRecord(
            f"{damage}; restore an older version of this object, or keep one of the running workers alive: it writes a"
            " new image at its next repair"
        )
        damaged.key = key
        raise damaged from damage

    @property
    def doubts(self) -> int:
        """How many writes have not been answered so far."""
        return self._bucket.doubts

    async def append(self, record: LogRecord) -> None:
        """Create the record. Raises Conflict if another record has the number, or what `put_document` raises.

        If an attempt was not answered, its record may have been merged and deleted before the next attempt: the
        caller compares `doubts` before and after, and reads the floor.
        """
        key, own_id = self.key(record.header.first), record.header.id
        data = await run_sized(self._run, len(record.patchset), lambda: encode_frame(*record))
        await put_document(
            self._bucket,
            key,
            data,
            expected=NEW,
            is_ours=lambda stored: _is_ours(key, stored, own_id),
        )


def _is_ours(key: str, stored: bytes, own_id: str) -> bool | None:
    try:
        return decode_frame(key, stored)[0].id == own_id
    except DamagedFrame:
        return None  # the response may be damaged, and the record may be ours
    except NewerFormat:
        return False


class WatchedBucket:
    """Counts writes that were not answered, and reports failed requests."""

    def __init__(self, bucket: Bucket, failed: Callable[[], None]) -> None:
        self._bucket, self._failed = bucket, failed
        self.doubts = 0
        self.now = bucket.now

    async def get(self, key: str) -> Blob | None:
        with self._watched():
            return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        with self._watched():
            return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        with self._watched():
            await self._bucket.delete(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        with self._watched():
            async for key in self._bucket.keys(prefix, after=after):
                yield key

    async def versions(self, key: str) -> list[Blob]:
        with self._watched():
            return await self._bucket.versions(key)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            self.doubts += isinstance(error, OutcomeUnknown)
            self._failed()
            raise
