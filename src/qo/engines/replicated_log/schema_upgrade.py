"""Upgrades a log of an earlier build: the step of the schema becomes its next record."""

from contextlib import suppress

from qo.engines.replicated_log.frame import FrameFlags, FrameHeader
from qo.engines.replicated_log.keys import FrameKind
from qo.engines.replicated_log.log_meta import record_schema
from qo.engines.replicated_log.record_store import LogRecord, RecordStore
from qo.engines.replicated_log.replica import LogPosition
from qo.engines.replicated_log.schema_steps import SchemaStep, encode_step
from qo.errors import Conflict
from qo.ids import new_token


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
