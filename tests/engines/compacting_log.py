"""The layout `log` in small blocks: merges, images, garbage collection and checks of the floor happen all the time."""

from collections.abc import Sequence

from msgspec.structs import replace

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.clock import Clock
from qo.engine import Engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine
from qo.forwarding_engine import ForwardingEngine
from qo.model import Added, Change, NewTask

SMALL_BLOCKS = LogOptions(block_size=4, image_threshold=1, min_record_age=0.0, trust=0.0)
# Several processes need some time to read what others delete.
SHARED_BLOCKS = LogOptions(block_size=4, image_threshold=1, min_record_age=4.0, trust=1.0)
# As many tasks as possible are in segments, in as many as possible.
COLD_SEGMENTS = LogOptions(
    block_size=4,
    image_threshold=1,
    min_record_age=0.0,
    trust=0.0,
    segment_size=2,
    hot_tasks=0,
    kept_tasks=0,
    cold_age=-1.0,
    thaw_time=0.0,
)
SHARED_SEGMENTS = replace(COLD_SEGMENTS, min_record_age=4.0, trust=1.0)
_REPAIR_INTERVAL = 2  # calls of add or apply


class CompactingEngine(ForwardingEngine):
    """Repairs after every second call that adds or changes tasks. The caller waits for it."""

    _calls = 0

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        answers = await self.engine.add(tasks)
        await self._compact()
        return answers

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await self.engine.apply(changes)
        await self._compact()
        return answers

    async def _compact(self) -> None:
        self._calls += 1
        if self._calls % _REPAIR_INTERVAL == 0:
            await self.engine.repair()


def compacting_log(bucket: Bucket, clock: Clock | None = None) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, SMALL_BLOCKS, clock=clock))


def cold_log(bucket: Bucket, clock: Clock | None = None) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, COLD_SEGMENTS, clock=clock))


def cold_log_in_shards(bucket: Bucket, clock: Clock | None = None) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, replace(COLD_SEGMENTS, shard_count=3), clock=clock))


def shared_compacting_log(bucket: Bucket) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, SHARED_BLOCKS))


def shared_cold_log(bucket: Bucket) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, SHARED_SEGMENTS))


def shared_cold_log_in_shards(bucket: Bucket) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(bucket, replace(SHARED_SEGMENTS, shard_count=3)))


# The engines of a URL with `layout=log`, for processes that are killed. Their options must not be in the URL.


def open_compacting_log(url: str) -> Engine:
    return shared_compacting_log(_open_bucket(url))


def open_cold_log(url: str) -> Engine:
    return shared_cold_log(_open_bucket(url))


def open_cold_log_in_shards(url: str) -> Engine:
    return shared_cold_log_in_shards(_open_bucket(url))


def _open_bucket(url: str) -> Bucket:
    return open_bucket(url.replace("?layout=log", "").replace("&layout=log", ""))
