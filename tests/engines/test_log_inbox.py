"""Producers without a replica, through the engine: what they cost, who adds their tasks, and when they are visible."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from qo.bucket import Bucket
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, LogImage
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.keys import NO_ID, submissions_prefix
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.log_options import LogOptions, SubmitMode
from qo.ids import new_id
from qo.model import Filter, NewTask, Status, cancel, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, stored, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run

INBOX = LogOptions(submit=SubmitMode.INBOX)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> CountingBucket:
    return CountingBucket(MemoryBucket(clock))


@pytest.fixture
async def producer(bucket: CountingBucket, clock: ManualClock) -> AsyncIterator[ReplicatedLogEngine]:
    engine = ReplicatedLogEngine(bucket, INBOX, clock=clock)
    yield engine
    await engine.close()


@pytest.fixture
async def worker(bucket: CountingBucket, clock: ManualClock) -> AsyncIterator[ReplicatedLogEngine]:
    engine = ReplicatedLogEngine(bucket, clock=clock)
    yield engine
    await engine.close()


async def waiting(bucket: Bucket) -> int:
    """How many submissions wait."""
    meta = await read_meta(bucket)
    assert meta is not None
    return len([key async for key in bucket.keys(submissions_prefix(meta.id, 0))])


def fresh(clock: ManualClock, **fields: object) -> NewTask:
    return NewTask(**{"id": new_id(clock), "queue": "q", "type": "t"} | fields)  # type: ignore[arg-type]


async def pretend_a_large_image(bucket: Bucket) -> None:
    """Let the checkpoint name an image whose parts do not exist, so that a process which loads it fails."""
    meta = await read_meta(bucket)
    assert meta is not None
    image = LogImage(seq=1, id=NO_ID, token=NO_ID, parts=10, bytes=80_000_000, raw_bytes=600_000_000, schema=7)
    await CheckpointStore(bucket, meta.id, 0).change(lambda checkpoint: checkpoint.with_image(image))


async def test_a_worker_that_waits_finds_a_submission_and_claims_it_in_the_commit_that_adds_it(
    bucket: CountingBucket, producer: ReplicatedLogEngine, worker: ReplicatedLogEngine
) -> None:
    assert await claim(worker) == []
    assert await producer.add([new(1), new(2)]) == [(task_id(1), True), (task_id(2), True)]
    assert await waiting(bucket) == 1
    await worker.wait(claim_request(), 60)
    before = bucket.requests["put"]
    tasks = await claim(worker)
    assert [task.id for task in tasks] == [task_id(1), task_id(2)]
    assert bucket.requests["put"] == before + 1
    assert await worker.apply([complete(task) for task in tasks]) == [True, True]
    assert await waiting(bucket) == 0


async def test_a_submission_is_added_once_although_two_workers_see_it(
    bucket: CountingBucket, clock: ManualClock, producer: ReplicatedLogEngine, worker: ReplicatedLogEngine
) -> None:
    other = ReplicatedLogEngine(bucket, clock=clock)
    await worker.add([new(0)])
    for n in range(1, 6):
        await producer.add([new(n)])
    await asyncio.gather(
        worker.wait(claim_request(types=("none",)), 60), other.wait(claim_request(types=("none",)), 60)
    )
    got = await asyncio.gather(claim(worker, limit=3), claim(other, limit=3))
    assert sorted(task.id for tasks in got for task in tasks) == [task_id(n) for n in range(6)]
    assert await worker.repair() == 0
    assert await waiting(bucket) == 0
    await other.close()


async def test_a_producer_reads_and_changes_its_own_submission(
    bucket: CountingBucket, producer: ReplicatedLogEngine, worker: ReplicatedLogEngine
) -> None:
    await worker.add([new(0)])
    await producer.add([new(1)])
    assert (await stored(producer, 1)).status is Status.PENDING
    await producer.add([new(2)])
    assert await producer.apply([cancel(task_id(2))]) == [True]
    await producer.add([new(3)])
    assert sum((await producer.count()).values()) == 4
    await producer.add([new(4)])
    assert [task.id for task in await claim(producer)] == [task_id(n) for n in (0, 1, 3, 4)]
    assert await waiting(bucket) == 0


async def test_repair_adds_everything_that_waits(
    bucket: CountingBucket, producer: ReplicatedLogEngine, worker: ReplicatedLogEngine
) -> None:
    for n in range(70):
        await producer.add([new(n)])
    assert await worker.repair() > 0
    assert await waiting(bucket) == 0
    assert len(await worker.find(Filter(), limit=99)) == 70


def test_a_busy_worker_that_never_waits_adds_submissions() -> None:
    async def work() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        worker = ReplicatedLogEngine(SlowBucket(bucket), clock=clock)
        producer = ReplicatedLogEngine(bucket, INBOX, clock=clock)
        await worker.add([new(n) for n in range(200)])
        await producer.add([new("urgent", priority=1)])
        for _ in range(100):
            tasks = await claim(worker, limit=1)
            await worker.apply([complete(task) for task in tasks])
            if tasks[0].id == task_id("urgent"):
                break
        else:
            pytest.fail("the urgent task was never claimed")
        for engine in (worker, producer):
            await engine.close()

    run(work())


def test_submissions_start_as_soon_as_a_poll_finds_them() -> None:
    async def serve() -> list[float]:
        clock = ManualClock()
        bucket = SlowBucket(MemoryBucket(clock))
        worker, producer = ReplicatedLogEngine(bucket, clock=clock), ReplicatedLogEngine(bucket, INBOX, clock=clock)
        loop, sent, took = asyncio.get_running_loop(), dict[str, float](), list[float]()
        settling: set[asyncio.Task[list[bool]]] = set()

        async def submit() -> None:
            for n in range(40):
                sent[task_id(n)] = loop.time()
                await producer.add([new(n)])
                await pass_time(0.022)

        submitting = asyncio.create_task(submit())
        while len(took) < 40:
            tasks = await claim(worker)
            took += [loop.time() - sent[task.id] for task in tasks]
            if tasks:
                settling.add(asyncio.create_task(worker.apply([complete(task) for task in tasks])))
            await worker.wait(claim_request(), 60)
        await asyncio.gather(*settling)
        await submitting
        for engine in (worker, producer):
            await engine.close()
        return sorted(took)

    took = run(serve())
    assert took[len(took) // 2] < 0.2  # simulated time: 28 ms a write, 25 ms a read


async def test_a_task_submitted_to_a_deep_queue_costs_one_write_and_downloads_nothing(
    bucket: CountingBucket, clock: ManualClock, worker: ReplicatedLogEngine
) -> None:
    await worker.add([new(0)])
    await pretend_a_large_image(bucket)
    producer = ReplicatedLogEngine(bucket, clock=clock)
    await producer.open()
    before = dict(bucket.requests)
    await producer.add([fresh(clock)])
    assert bucket.requests["put"] == before["put"] + 1
    assert bucket.requests["get"] == before["get"] + 1  # the checkpoint
    await producer.add([fresh(clock)])
    assert bucket.requests["put"] == before["put"] + 2
    assert bucket.requests["get"] == before["get"] + 1
    assert bucket.requests["list"] == before.get("list", 0)
    assert await waiting(bucket) == 2
    await producer.close()


async def test_keyed_tasks_and_foreign_ids_are_committed_directly(
    bucket: CountingBucket, clock: ManualClock, worker: ReplicatedLogEngine
) -> None:
    await worker.add([new(0)])
    await pretend_a_large_image(bucket)
    for tasks in (
        [fresh(clock, idempotency_key="k")],
        [fresh(clock), new(5)],
        [NewTask(id=new_id(lambda: clock() - 3600), queue="q", type="t")],
    ):
        producer = ReplicatedLogEngine(bucket, clock=clock)
        assert [answer.new for answer in await producer.add(tasks)] == [True] * len(tasks)
        await producer.close()
    assert await waiting(bucket) == 0
    direct = ReplicatedLogEngine(bucket, LogOptions(submit=SubmitMode.DIRECT), clock=clock)
    await direct.add([fresh(clock)])
    assert await waiting(bucket) == 0
    await direct.close()


async def test_a_process_with_a_replica_commits_directly(
    bucket: CountingBucket, clock: ManualClock, worker: ReplicatedLogEngine
) -> None:
    await worker.add([new(0)])
    await pretend_a_large_image(bucket)
    await worker.add([fresh(clock)])
    assert await waiting(bucket) == 0


async def test_a_process_that_only_submits_leaves_its_tasks_in_the_inbox_after_a_lost_race(
    bucket: CountingBucket, clock: ManualClock, worker: ReplicatedLogEngine
) -> None:
    producer = ReplicatedLogEngine(bucket, clock=clock)
    await producer.add([fresh(clock)])
    assert len(await claim(worker)) == 1
    await producer.add([fresh(clock)])  # the worker has written meanwhile
    assert await waiting(bucket) == 0
    tasks = [fresh(clock) for _ in range(3)]
    for task in tasks:
        await producer.add([task])
    assert await waiting(bucket) == 3
    await producer.add([fresh(clock, idempotency_key="k")])
    assert await waiting(bucket) == 0  # it adds its own submissions before it changes the tables
    assert [task is not None for task in await producer.get([task.id for task in tasks])] == [True] * 3
    await producer.add([fresh(clock)])
    assert await waiting(bucket) == 0  # it reads, too
    await producer.close()


async def test_many_submissions_of_one_process_are_visible_to_it(
    bucket: CountingBucket, producer: ReplicatedLogEngine, worker: ReplicatedLogEngine
) -> None:
    await worker.add([new(0)])
    for n in range(1, 150):
        await producer.add([new(n)])
    assert len(await producer.find(Filter(), limit=999)) == 150
    assert await waiting(bucket) == 0
