"""Requests of a replicated log: how many, how large, and how soon a process notices what another one wrote."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines.replicated_log import compaction
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.keys import parse_key
from qo.engines.replicated_log.log_options import LogOptions, SubmitMode
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


async def test_a_read_of_a_current_replica_is_one_listing(bucket: CountingBucket, engine: ReplicatedLogEngine) -> None:
    await engine.add([new(1)])
    for read in (engine.find(Filter(), limit=9), engine.count("batch"), claim(engine, types=("other",))):
        before = bucket.requests.copy()
        await read
        made = bucket.requests - before
        assert made["list"] <= 1 and made.total() <= 2
    before = bucket.requests.copy()
    assert [task.id for task in await engine.find(Filter(), limit=9)] == [task_id(1)]
    assert bucket.requests - before == {"list": 1}


async def test_records_of_a_block_that_is_too_large_are_not_read_again(
    bucket: CountingBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "_MAX_MERGED_BYTES", 4000)
    monkeypatch.setattr(compaction, "_MAX_KEPT_BYTES", 100)
    engine = ReplicatedLogEngine(bucket, LogOptions(block_size=8))
    for name in range(16):
        await engine.add([new(name, payload=b"x" * 1000)])
    await engine.close()
    assert bucket.requests["get"] == 3  # the name of the log, and the checkpoint after each block
    assert not [key async for key in bucket.keys("log/") if "/merged/" in key]


async def test_the_repair_of_a_young_log_lists_nothing_that_it_cannot_delete(
    bucket: CountingBucket, engine: ReplicatedLogEngine
) -> None:
    await engine.add([new(1)])
    listed = list[str]()
    keys = bucket.keys

    def watched(prefix: str, *, after: str = "") -> AsyncIterator[str]:
        listed.append(prefix)
        return keys(prefix, after=after)

    bucket.keys = watched  # type: ignore[method-assign]
    await engine.repair()
    assert not [prefix for prefix in listed if prefix.endswith(("/records/", "/images/"))]


async def test_a_read_by_one_listing_shows_what_another_process_wrote(bucket: CountingBucket) -> None:
    engine, other, producer = (
        ReplicatedLogEngine(bucket, LogOptions(submit=mode))
        for mode in (SubmitMode.DIRECT, SubmitMode.DIRECT, SubmitMode.INBOX)
    )
    await engine.add([new(1)])
    await other.add([new(2)])
    await producer.add([new(3)])
    assert {task.id for task in await engine.find(Filter(), limit=9)} == {task_id(n) for n in (1, 2, 3)}
    for used in (engine, other, producer):
        await used.close()


def test_a_read_of_an_idle_process_counts_as_a_poll() -> None:
    async def wait(*, reads: bool) -> int:
        clock = ManualClock()
        bucket = CountingBucket(MemoryBucket(clock))
        engine = ReplicatedLogEngine(bucket, clock=clock)
        await engine.add([new(1)])
        assert len(await claim(engine)) == 1
        await engine.wait(claim_request(), 120)  # until a quiet minute has passed
        before = bucket.requests.total()
        waiting = asyncio.create_task(engine.wait(claim_request(), 299))
        for _ in range(29):
            await pass_time(10)
            if reads:
                await engine.find(Filter(), limit=1)
        await waiting
        await engine.close()
        return bucket.requests.total() - before

    assert run(wait(reads=False)) == 19  # every 15 s
    assert run(wait(reads=True)) == 29  # only the reads


def test_a_read_that_finds_news_ends_the_wait_of_an_idle_worker() -> None:
    async def wait() -> float:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        worker, producer = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
        await producer.add([new(1)])
        assert len(await claim(worker)) == 1
        await worker.wait(claim_request(), 120)
        waiting = asyncio.create_task(worker.wait(claim_request(), 60))
        await pass_time(1)
        await producer.add([new(2)])
        await worker.find(Filter(), limit=1)
        began = asyncio.get_running_loop().time()
        await waiting
        for engine in (worker, producer):
            await engine.close()
        return asyncio.get_running_loop().time() - began

    assert run(wait()) < 0.1


def test_reads_do_not_postpone_the_poll_that_finds_a_task_which_the_replica_already_has() -> None:
    async def wait() -> float:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        worker, producer = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
        await producer.add([new(1)])
        assert len(await claim(worker)) == 1
        await worker.wait(claim_request(), 120)
        waiting = asyncio.create_task(worker.wait(claim_request(), 299))
        await pass_time(1)
        await producer.add([new(2)])
        await worker.get([task_id(1)])  # applies the record without a listing
        began = asyncio.get_running_loop().time()
        while not waiting.done():
            await worker.find(Filter(), limit=1)
            await pass_time(10)
        for engine in (worker, producer):
            await engine.close()
        return asyncio.get_running_loop().time() - began

    assert run(wait()) <= 20  # the interval of an idle worker is 15 s


def test_a_read_that_finds_news_ends_the_waits_of_all_idle_workers_of_a_process() -> None:
    async def wait() -> float:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        worker, producer = (ReplicatedLogEngine(bucket, clock=clock) for _ in range(2))
        await producer.add([new(1)])
        assert len(await claim(worker)) == 1
        await worker.wait(claim_request(), 120)
        requests = (claim_request(types=("other",)), claim_request())
        others, waiting = (asyncio.create_task(worker.wait(request, 60)) for request in requests)
        await pass_time(1)
        await worker.find(Filter(), limit=1)  # finds nothing, and postpones the polls
        await pass_time(1)
        await producer.add([new(2)])
        await worker.find(Filter(), limit=1)
        began = asyncio.get_running_loop().time()
        await waiting
        ended = asyncio.get_running_loop().time()
        others.cancel()
        for engine in (worker, producer):
            await engine.close()
        return ended - began

    assert run(wait()) < 0.1


@pytest.mark.parametrize("shards", [1, 2])
def test_a_claim_finds_a_due_task_behind_many_due_tasks_of_another_type(shards: int) -> None:
    async def work() -> list[str]:
        clock = ManualClock()
        worker = ReplicatedLogEngine(MemoryBucket(clock), LogOptions(shard_count=shards), clock=clock)
        await worker.add([new(n, type="other", delay=200.0) for n in range(shards * 1200)])
        await worker.add([new("ours", delay=201.0)])
        await worker.wait(claim_request(types=("t",)), 120)  # so that the next claim only lists
        clock.advance(300)
        claimed = await claim(worker, types=("t",))
        await worker.close()
        return [task.id for task in claimed]

    assert run(work()) == [task_id("ours")]


async def test_a_closed_engine_can_be_used_again(engine: ReplicatedLogEngine) -> None:
    await engine.add([new(1)])
    await engine.close()
    assert [task.id for task in await engine.find(Filter(), limit=9)] == [task_id(1)]


def test_a_proof_is_not_trusted_for_longer_than_records_are_kept() -> None:
    with pytest.raises(InvalidSetting, match="trust"):
        LogOptions(trust=50_000.0)
    with pytest.raises(InvalidSetting, match="shard_count"):
        LogOptions(shard_count=0)
