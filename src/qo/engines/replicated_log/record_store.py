"""The records of one shard: reads, and creations whose outcome is known."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from qo.bucket import NEW, Bucket
from qo.buckets.own_writes import put_document
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, decode_frame, encode_frame
from qo.engines.replicated_log.keys import record_key
from qo.engines.retry import retry
from qo.errors import NewerFormat, OutcomeUnknown, Refused

_MAX_READS = 3  # of a damaged record: the response may be damaged, not the object


class LogRecord(NamedTuple):
    """One commit, or several merged ones."""

    header: FrameHeader
    patchset: bytes


class DamagedRecord(Refused):
    """A record cannot be read or applied, so nothing after it can be read either."""


class RecordStore:
    def __init__(self, bucket: Bucket, log: str, shard: int) -> None:
        self._bucket, self._log, self._shard = bucket, log, shard

    def key(self, seq: int) -> str:
        return record_key(self._log, self._shard, seq)

    async def get(self, seq: int) -> LogRecord | None:
        """The record, or None if it does not exist. Raises DamagedRecord, or NewerFormat."""
        key = self.key(seq)
        former = b""
        for _ in range(_MAX_READS):
            blob = await retry(lambda: self._bucket.get(key))
            if blob is None:
                return None
            try:
                return LogRecord(*decode_frame(key, blob.data))
            except DamagedFrame as error:
                damage = error
            if blob.data == former:
                break
            former = blob.data
        raise DamagedRecord(
            f"{damage}; restore an older version of this object, or keep one of the running workers alive: it writes a"
            " new image at its next repair"
        ) from damage

    async def append(self, record: LogRecord) -> bool:
        """Create the record. True: an attempt was without an answer, so a later one may have found it deleted.

        Raises Conflict if another record has the number, and otherwise what `put_document` raises.
        """
        key, own_id = self.key(record.header.first), record.header.id
        bucket = _DoubtfulBucket(self._bucket)
        await put_document(
            bucket,
            key,
            encode_frame(record.header, record.patchset),
            expected=NEW,
            is_ours=lambda stored: _is_ours(key, stored, own_id),
        )
        return bucket.was_in_doubt


def _is_ours(key: str, stored: bytes, own_id: str) -> bool | None:
    try:
        return decode_frame(key, stored)[0].id == own_id
    except DamagedFrame:
        return None  # the response may be damaged, and the record may be ours
    except NewerFormat:
        return False


class _DoubtfulBucket:
    """Notes whether a write was left without an answer."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.was_in_doubt = False
        self.get, self.delete, self.versions, self.now = bucket.get, bucket.delete, bucket.versions, bucket.now

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        try:
            return await self._bucket.put(key, data, expected=expected)
        except OutcomeUnknown:
            self.was_in_doubt = True
            raise

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)
