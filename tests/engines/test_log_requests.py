"""Requests of a replicated log: how many, how large, and how soon a process notices what another one wrote."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qo.buckets.memory import MemoryBucket
from qo.buckets.request_counter import CountingBucket
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.keys import parse_key
from qo.engines.replicated_log.log_options import LogOptions
from qo.errors import InvalidSetting
from qo.model import Filter, Task, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run


@pytest.fixture
def bucket() -> CountingBucket:
    return CountingBucket(MemoryBucket(ManualClock()))


@pytest.fixture
async def engine(bucket: CountingBucket) -> AsyncIterator[ReplicatedLogEngine]:
    engine = ReplicatedLogEngine(bucket)
    yield engine
    await engine.close()


async def records(bucket: CountingBucket) -> int:
    found = [parse_key(key) async for key in bucket.keys("log/")]
    return len([name for name in found if name is not None])


async def test_a_log_that_does_not_exist_is_empty_and_reading_creates_nothing(
    bucket: CountingBucket, engine: ReplicatedLogEngine
) -> None:
    await engine.open()
    assert await engine.find(Filter(), limit=9) == []
    assert await claim(engine) == [] == await engine.history(task_id(1))
    assert await engine.count() == {}
    assert await engine.delete([task_id(1)]) == [False]
    assert await engine.get([task_id(1)]) == [None]
    assert await engine.add([]) == []
    assert await engine.notes("quarantine/") == []
    assert "put" not in bucket.requests


def test_a_single_writer_makes_one_request_per_commit() -> None:
    async def write() -> None:
        clock = ManualClock()
        bucket = CountingBucket(MemoryBucket(clock))
        engine = ReplicatedLogEngine(bucket, clock=clock)
        await asyncio.gather(*(engine.add([new(n)]) for n in range(50)))
        assert bucket.requests == {"get": 1, "put": 3}  # the checkpoint, the name of the log, and the record
        tasks = await claim(engine, limit=50)
        await asyncio.gather(*(engine.apply([complete(task)]) for task in tasks))
        assert bucket.requests == {"get": 1, "put": 5}
        await engine.close()

    run(write())


async def test_a_large_batch_is_split_into_records(bucket: CountingBucket, engine: ReplicatedLogEngine) -> None:
    added = await engine.add([new(n) for n in range(4_001)])
    assert [answer.id for answer in added] == [task_id(n) for n in range(4_001)]
    assert await records(bucket) == 2
    await engine.add([new(10_000 + n, payload=b"x" * 1024 * 1024) for n in range(9)])
    assert await records(bucket) == 4


async def test_concurrent_calls_with_large_values_do_not_share_a_record(
    bucket: CountingBucket, engine: ReplicatedLogEngine
) -> None:
    await engine.add([new(0)])
    await asyncio.gather(*(engine.add([new(n, payload=b"x" * 6 * 1024 * 1024)]) for n in range(1, 7)))
    assert await records(bucket) == 4  # two of them fit into one
    tasks = await claim(engine)
    large = b"1" * 6 * 1024 * 1024
    assert all(await engine.apply([complete(task, large) for task in tasks]))
    assert await records(bucket) == 5 + len(tasks)


def test_callers_that_have_just_been_answered_join_the_calls_that_wait() -> None:
    """A worker settles what it has claimed and claims again: both go into one record."""

    async def work() -> None:
        clock = ManualClock()
        bucket = CountingBucket(SlowBucket(MemoryBucket(clock)))
        engine = ReplicatedLogEngine(bucket, clock=clock)
        await engine.add([new(n) for n in range(20)])
        before, claimed = bucket.requests["put"], asyncio.Queue[Task | None]()

        async def settle() -> None:
            while task := await claimed.get():
                await pass_time(0.001)  # the task runs
                assert await engine.apply([complete(task)]) == [True]

        settling = asyncio.create_task(settle())
        while tasks := await claim(engine, limit=1):
            claimed.put_nowait(tasks[0])
        claimed.put_nowait(None)
        await settling
        assert bucket.requests["put"] - before < 30  # and not 40
        await engine.close()

    run(work())


def test_an_idle_process_wakes_soon_after_another_one_added_a_task() -> None:
    async def wait() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        worker, producer = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
        await producer.add([new(1)])
        assert len(await claim(worker)) == 1
        waiting = asyncio.create_task(worker.wait(claim_request(), 60))
        await pass_time(0.01)
        await producer.add([new(2)])
        began = asyncio.get_running_loop().time()
        await waiting
        assert asyncio.get_running_loop().time() - began < 0.1
        for engine in (worker, producer):
            await engine.close()

    run(wait())


async def test_a_closed_engine_can_be_used_again(engine: ReplicatedLogEngine) -> None:
    await engine.add([new(1)])
    await engine.close()
    assert [task.id for task in await engine.find(Filter(), limit=9)] == [task_id(1)]


def test_a_proof_is_not_trusted_for_longer_than_records_are_kept() -> None:
    with pytest.raises(InvalidSetting, match="trust"):
        LogOptions(trust=50_000.0)
    with pytest.raises(InvalidSetting, match="shard_count"):
        LogOptions(shard_count=0)
