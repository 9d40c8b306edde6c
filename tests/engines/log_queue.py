"""A log that exists, and the processes that use it, for tests."""

from typing import Any

from qo.bucket import Bucket
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.engines.replicated_log.keys import submissions_prefix
from qo.engines.replicated_log.log_meta import read_meta
from qo.ids import new_id
from qo.model import NewTask
from qo.testing import ManualClock
from qo.testing.samples import claim, new

INBOX, DIRECT = LogOptions(submit=SubmitMode.INBOX), LogOptions(submit=SubmitMode.DIRECT)


class Queue:
    """A log that exists, and the processes that use it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.bucket = MemoryBucket(self.clock)

    async def create(self) -> "Queue":
        await self.engine(DIRECT).add([new("first")])
        assert len(await claim(self.engine())) == 1
        return self

    def engine(self, options: LogOptions | None = None, bucket: Bucket | None = None) -> ReplicatedLogEngine:
        return ReplicatedLogEngine(bucket or self.bucket, options, clock=self.clock)

    def task(self, **fields: Any) -> NewTask:
        return new(**{"id": new_id(self.clock)} | fields)

    async def waiting(self) -> list[str]:
        meta = await read_meta(self.bucket)
        assert meta is not None
        return [key async for key in self.bucket.keys(submissions_prefix(meta.id, 0))]
