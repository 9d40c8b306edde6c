"""The object that names a log: its id, its number of shards, and its format. Only an upgrade of the format replaces it.

The creator chooses the id at random, and all other objects of the log are in a folder of that name. So a process that
still uses a log which was removed cannot write into the one that replaced it.
"""

import re
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from qo.bucket import NEW, Bucket
from qo.buckets.own_writes import put_document
from qo.checksum import check_seal, sealed
from qo.engines.parallel import in_parallel
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.keys import MAX_SHARDS, META
from qo.engines.retry import retry, retry_opening
from qo.errors import Conflict, StorageError
from qo.formats import Format, check_format, format_of
from qo.ids import new_token
from qo.model import UNREADABLE

FORMAT = 1  # see docs/formats.md
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and preserve
_ID_DIGITS = 12
_MAX_READS = 3  # of a damaged object, until two responses are the same
_MAX_PARALLEL_REQUESTS = 16


class LogMeta(Format, frozen=True, kw_only=True):
    id: str  # the folder of the log
    shards: int
    created_at: float  # by the store's clock
    write: str  # the id of the write, by which its writer recognises it


_format_decoder = msgspec.json.Decoder(Format)
_meta_decoder = msgspec.json.Decoder(LogMeta)


async def read_meta(bucket: Bucket, *, is_opening: bool = False) -> LogMeta | None:
    """The log that the bucket holds, or None. Raises NewerFormat, and StorageError if the object is damaged."""
    former = b""
    for _ in range(_MAX_READS):
        blob = await (retry_opening if is_opening else retry)(lambda: bucket.get(META))
        if blob is None:
            return None
        try:
            return _decoded(blob.data)
        except UNREADABLE as error:
            cause = error
        if blob.data == former:
            break
        former = blob.data  # the response may be damaged, and not the object
    raise StorageError(
        f"{META} is damaged: {cause}; restore an older version of this object: without it no task can be found"
    ) from cause


def _decoded(data: bytes) -> LogMeta:
    check_seal(data)
    check_format(f"the queue of {META}", _format_decoder.decode(data), FORMAT)  # first: later formats may differ
    meta = _meta_decoder.decode(data)
    if not re.fullmatch(f"[0-9a-f]{{{_ID_DIGITS}}}", meta.id):
        raise ValueError(f"{meta.id!r:.40} is not the id of a log")
    if not 1 <= meta.shards <= MAX_SHARDS:
        raise ValueError(f"{meta.shards} is not a number of shards")
    return meta


async def create_log(bucket: Bucket, shards: int, now: float) -> LogMeta:
    """Create an empty log, or return the one that another process created first.

    The checkpoints are created first: a log whose meta object exists has all of them, so a missing one is damage.
    """
    meta = LogMeta(
        **msgspec.structs.asdict(format_of(FORMAT, additive=ADDITIVE)),
        id=new_token()[:_ID_DIGITS],
        shards=shards,
        created_at=now,
        write=new_token(),
    )
    stores = [CheckpointStore(bucket, meta.id, shard) for shard in range(shards)]
    await in_parallel(CheckpointStore.create, stores, max_concurrent=_MAX_PARALLEL_REQUESTS)
    try:
        await put_document(
            bucket,
            META,
            sealed(msgspec.json.encode(meta)),
            expected=NEW,
            is_ours=lambda stored: _is_written_by(stored, meta.write),
        )
    except Conflict:
        winner = await read_meta(bucket)
        if winner is None:
            raise  # it was removed meanwhile
        if winner.id != meta.id:
            await _remove(bucket, stores)
        return winner
    return meta


def _is_written_by(stored: bytes, write: str) -> bool | None:
    try:
        check_seal(stored)
        return _meta_decoder.decode(stored).write == write
    except UNREADABLE:
        return None


async def _remove(bucket: Bucket, stores: Sequence[CheckpointStore]) -> None:
    """Remove what a lost race left behind. No process uses it, so a failure is harmless."""
    with suppress(StorageError):
        await in_parallel(bucket.delete, [store.key for store in stores], max_concurrent=_MAX_PARALLEL_REQUESTS)
