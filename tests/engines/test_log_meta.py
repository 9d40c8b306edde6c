"""The object that names a log: created once, never without its checkpoints, and refused if it cannot be read."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest

from qo.bucket import ANY, Blob
from qo.buckets.memory import MemoryBucket
from qo.damage import sealed, unsealed
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.keys import META
from qo.engines.replicated_log.log_meta import create_log, read_meta
from qo.errors import NewerFormat, StorageError
from qo.testing import Faults, FaultyBucket, ManualClock
from tests.engines.bucket_troubles import DyingBucket, Killed, SlowBucket
from tests.engines.fast_time import run


def bucket_of_log() -> MemoryBucket:
    return MemoryBucket(ManualClock())


async def checkpoints(bucket: MemoryBucket) -> list[str]:
    return [key async for key in bucket.keys("log/") if key.endswith("checkpoint.json")]


async def test_a_created_log_is_found_again() -> None:
    bucket = bucket_of_log()
    assert await read_meta(bucket) is None
    created = await create_log(bucket, 4, 1000.0)
    assert await read_meta(bucket) == created
    assert (created.shards, created.created_at, len(created.id)) == (4, 1000.0, 12)
    assert len(await checkpoints(bucket)) == 4
    assert (await CheckpointStore(bucket, created.id, 3).read()).floor == 1


def test_of_several_creators_one_wins_and_nothing_else_is_left() -> None:
    async def race() -> None:
        bucket = bucket_of_log()
        metas = await asyncio.gather(*(create_log(SlowBucket(bucket), 2, 0.0) for _ in range(5)))
        assert len(set(metas)) == 1
        assert await checkpoints(bucket) == [f"log/{metas[0].id}/0{shard}/checkpoint.json" for shard in (0, 1)]

    run(race())


@pytest.mark.parametrize("seed", range(10))
def test_a_creation_whose_answer_was_lost_is_recognised(seed: int) -> None:
    async def create() -> None:
        bucket = bucket_of_log()
        faulty = FaultyBucket(bucket, Faults(seed, lost_response=0.4, lost_request=0.2))
        created = await create_log(faulty, 1, 0.0)
        assert await read_meta(bucket) == created

    run(create())


async def test_a_creator_killed_at_any_request_leaves_no_log_without_checkpoints() -> None:
    for lives in range(1, 6):
        bucket = bucket_of_log()
        with suppress(Killed):
            await create_log(DyingBucket(bucket, lives), 3, 0.0)
        if meta := await read_meta(bucket):
            assert len(await checkpoints(bucket)) == meta.shards == 3
        assert (await create_log(bucket, 3, 0.0)).shards == 3


@pytest.mark.parametrize("added", [{}, {"id": 7, "shards": "many"}])
async def test_a_newer_format_is_refused_regardless_of_its_other_fields(added: dict[str, object]) -> None:
    bucket = bucket_of_log()
    meta = msgspec.to_builtins(await create_log(bucket, 1, 0.0))
    newer = meta | added | {"format": 3, "since": 2, "qo": "9.9"}
    await bucket.put(META, sealed(msgspec.json.encode(newer)), expected=ANY)
    with pytest.raises(NewerFormat, match=r"log/meta.json was written by a newer qo .* use qo 9\.9 or newer"):
        await read_meta(bucket)


async def test_a_newer_format_that_only_adds_is_read() -> None:
    bucket = bucket_of_log()
    created = await create_log(bucket, 1, 0.0)
    newer = msgspec.to_builtins(created) | {"format": 2, "since": 1, "region": "eu"}
    await bucket.put(META, sealed(msgspec.json.encode(newer)), expected=ANY)
    meta = await read_meta(bucket)
    assert meta is not None
    assert meta.id == created.id


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:10],
        lambda data: data[:0],
        lambda data: data.replace(b'"shards":1', b'"shards":2'),
        lambda data: unsealed(data).replace(b'"shards":1', b'"shards":0'),
        lambda data: unsealed(data).replace(b'"id":"', b'"id":"../'),
    ],
)
async def test_a_damaged_object_is_named(change: Callable[[bytes], bytes]) -> None:
    bucket = bucket_of_log()
    await create_log(bucket, 1, 0.0)
    stored = await bucket.get(META)
    assert stored is not None
    await bucket.put(META, change(stored.data), expected=ANY)
    with pytest.raises(StorageError, match=r"log/meta.json is damaged.*restore an older version"):
        await read_meta(bucket)


class OnceSpoiled(MemoryBucket):
    """The first response of a read has a flipped bit."""

    is_spoiled = False

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        if blob is None or self.is_spoiled or key != META:
            return blob
        self.is_spoiled = True
        return blob._replace(data=bytes([blob.data[0] ^ 1]) + blob.data[1:])


async def test_one_damaged_response_is_read_again() -> None:
    bucket = OnceSpoiled(ManualClock())
    created = await create_log(bucket, 1, 0.0)
    assert await read_meta(bucket) == created
    assert bucket.is_spoiled
