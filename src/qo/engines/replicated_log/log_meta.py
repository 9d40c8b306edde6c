"""The object that names a log: its id, its number of shards, and its format. Only an upgrade of the log replaces it.

The creator chooses the id at random, and all other objects of the log are in a folder of that name. So a process that
still uses a log which was removed cannot write into the one that replaced it.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from qo.bucket import NEW, Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.damage import check_seal, sealed
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.frame import FrameFlags, FrameHeader
from qo.engines.replicated_log.keys import MAX_SHARDS, META, FrameKind
from qo.engines.replicated_log.record_store import LogPosition, LogRecord, RecordStore
from qo.engines.replicated_log.replica_tables import OLDEST_SCHEMA, first_schema
from qo.engines.replicated_log.schema_steps import SchemaStep, encode_step
from qo.engines.requests import in_parallel, retry, retry_opening
from qo.errors import Conflict, StorageError
from qo.formats import Format, check_format, format_of
from qo.ids import new_token
from qo.model import UNREADABLE
from qo.sqlite_tables.header import VERSION

FORMAT = 1  # see docs/formats.md
ADDITIVE: frozenset[int] = frozenset()  # formats that only add what earlier builds may ignore and preserve
_ID_DIGITS = 12
_MAX_READS = 3  # of a damaged object, until two responses are identical
_MAX_PARALLEL_REQUESTS = 16


class LogMeta(Format, frozen=True, kw_only=True):
    id: str  # the folder of the log
    shards: int
    created_at: float  # by the store's clock
    write: str  # the id of the write, by which its writer recognises it
    first_schema: int = OLDEST_SCHEMA  # of the tables before the first record
    schema: int = 0  # of the tables, after the last step; 0: there was no step, and any build may use the tables
    schema_since: int = 0  # builds that know this schema may use the tables
    schema_qo: str = ""  # the version that made the step


_Retry = Callable[[Callable[[], Awaitable[Blob | None]]], Awaitable[Blob | None]]
_format_decoder = msgspec.json.Decoder(Format)
_meta_decoder = msgspec.json.Decoder(LogMeta)


async def read_meta(bucket: Bucket, *, is_opening: bool = False) -> LogMeta | None:
    """The log that the bucket holds, or None. Raises NewerFormat, and StorageError if the object is damaged."""
    found = await _read(bucket, retry_opening if is_opening else retry)
    return None if found is None else found[0]


async def _read(bucket: Bucket, retried: _Retry) -> tuple[LogMeta, str] | None:
    """The content of the object, and its version."""
    former = b""
    for _ in range(_MAX_READS):
        blob = await retried(lambda: bucket.get(META))
        if blob is None:
            return None
        try:
            return _decoded(blob.data), blob.version
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
    tables = Format(format=meta.schema, since=meta.schema_since, qo=meta.schema_qo)
    check_format(f"the queue of {META}", tables, VERSION)
    if not re.fullmatch(f"[0-9a-f]{{{_ID_DIGITS}}}", meta.id):
        raise ValueError(f"{meta.id!r:.40} is not the id of a log")
    if not 1 <= meta.shards <= MAX_SHARDS:
        raise ValueError(f"{meta.shards} is not a number of shards")
    return meta


async def create_log(bucket: Bucket, shards: int, now: float) -> LogMeta:
    """Create an empty log, or return the one that another process created first.

    The checkpoints are created first: a log whose meta object exists has all of them, so a missing one is damage.
    """
    tables = first_schema()
    meta = LogMeta(
        **msgspec.structs.asdict(format_of(FORMAT, additive=ADDITIVE)),
        first_schema=tables.format,
        schema=tables.format,
        schema_since=tables.since,
        schema_qo=tables.qo,
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
            raise  # it was removed in the meantime
        if winner.id != meta.id:
            await _remove(bucket, stores)
        return winner
    return meta


async def record_schema(bucket: Bucket, step: SchemaStep) -> None:
    """Record a step of the tables before it is made. Concurrent calls are safe."""
    while True:
        found = await _read(bucket, retry)
        if found is None:
            raise StorageError(f"{META} was removed while this process used the queue")
        meta, version = found
        if meta.schema >= step.number:
            return
        raised = msgspec.structs.replace(
            meta, schema=step.number, schema_since=step.since, schema_qo=step.qo, write=new_token()
        )
        with suppress(Conflict):  # another process has changed it: read it again
            await put_document(
                bucket,
                META,
                sealed(msgspec.json.encode(raised)),
                expected=version,
                is_ours=partial(_is_written_by, write=raised.write),
            )
            return


def _is_written_by(stored: bytes, write: str) -> bool | None:
    try:
        check_seal(stored)
        return _meta_decoder.decode(stored).write == write
    except UNREADABLE:
        return None


async def _remove(bucket: Bucket, stores: Sequence[CheckpointStore]) -> None:
    """Remove the objects left by a lost race. No process uses them, so a failure is harmless."""
    with suppress(StorageError):
        await in_parallel(bucket.delete, [store.key for store in stores], max_concurrent=_MAX_PARALLEL_REQUESTS)


async def append_step(records: RecordStore, position: LogPosition, step: SchemaStep) -> None:
    """Make the step the next record, unless another process creates that record first. The caller reads it then.

    The meta object comes first: a build that the step excludes must no longer open the log.
    """
    await record_schema(records.bucket, step)
    seq, own_id = position.seq + 1, new_token()
    header = FrameHeader(
        FrameKind.RECORD,
        records.shard,
        seq,
        seq,
        own_id,
        previous=position.id,
        last_id=own_id,
        at=records.bucket.now(),
        schema=step.number,
        schema_since=step.since,
        flags=FrameFlags.SCHEMA_STEP,
    )
    with suppress(Conflict):
        await records.append(LogRecord(header, encode_step(step)))
