"""A store that refuses large objects: batches are divided, and only what is too large alone is refused."""

import asyncio
import os

import pytest

from qo.buckets.memory import CountingBucket
from qo.client import Client
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine
from qo.engines.replicated_log.submission_batch import SubmissionBatch
from qo.errors import ObjectTooLarge
from qo.model import FINISHED, Filter, Status, Task, complete
from qo.tasks import Registry, make_handler, make_options
from qo.testing.samples import claim, claim_request, new
from qo.worker import Worker, WorkerSettings
from tests.conditions import until
from tests.engines.log_inbox import Place
from tests.engines.log_queue import DIRECT, INBOX, Queue
from tests.engines.small_objects import LIMIT, SmallObjects, limited, quarters, small_queue, too_large

SHARDED = LogOptions(shard_count=2)


async def _sharded_queue() -> Queue:
    queue = Queue()
    queue.bucket = SmallObjects(queue.clock)
    await queue.engine(SHARDED).add([queue.task()])
    await claim(queue.engine())
    return queue


async def _are_finished(client: Client, ids: list[str]) -> bool:
    return all(task and task.status in FINISHED for task in await client.engine.get(ids))


async def test_submissions_that_are_too_large_for_one_record_get_several() -> None:
    queue = await small_queue()
    for _ in range(5):
        await queue.engine(INBOX).add(quarters(queue, 2))
    worker = queue.engine()
    await worker.repair()
    assert len(await claim(worker, limit=20)) == 10
    assert await queue.waiting() == []


async def test_a_submission_too_large_for_a_record_waits_and_stops_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue = await Queue().create()
    await queue.engine(INBOX).add(quarters(queue, 4))  # by another way to the store
    small = queue.task()
    await queue.engine(INBOX).add([small])
    worker = queue.engine(bucket=limited(queue.bucket))
    assert [task.id for task in await claim(worker, limit=20)] == [small.id]
    assert await claim(worker) == []
    await worker.close()
    assert "waits: the store refuses a record with its tasks" in caplog.text
    assert len(await queue.waiting()) == 1
    assert len(await claim(queue.engine(), limit=20)) == 4


async def test_submissions_are_not_blamed_for_calls_that_are_too_large() -> None:
    queue = await small_queue()
    worker = queue.engine(DIRECT)
    await claim(worker)
    submitted = [queue.task() for _ in range(3)]
    for task in submitted:
        await queue.engine(INBOX).add([task])
    await worker.wait(claim_request(), 5)  # finds them, and adds nothing
    results = await asyncio.gather(*(worker.add(quarters(queue, 2)) for _ in range(5)), return_exceptions=True)
    assert not [result for result in results if isinstance(result, BaseException)]
    assert len(await claim(worker, limit=99)) == 13
    assert await queue.waiting() == []


async def test_submissions_are_added_beside_a_call_that_fails_because_of_its_size() -> None:
    queue = await small_queue()
    worker = queue.engine(DIRECT)
    await claim(worker)
    await queue.engine(INBOX).add([submitted := queue.task()])
    await worker.wait(claim_request(), 5)
    with pytest.raises(ObjectTooLarge):
        await worker.add([too_large(queue)])
    assert [task.id for task in await claim(worker, limit=9)] == [submitted.id]


async def test_calls_that_are_too_large_for_one_record_get_several() -> None:
    queue = await small_queue()
    engine = queue.engine(DIRECT)
    await asyncio.gather(*(engine.add(quarters(queue, 2)) for _ in range(5)))
    assert len(await claim(queue.engine(), limit=20)) == 10
    assert len(await engine.add(quarters(queue, 3))) == 3


@pytest.mark.parametrize("options", [DIRECT, INBOX], ids=["direct", "inbox"])
async def test_one_call_that_is_too_large_for_a_record_is_divided_and_keeps_its_order(options: LogOptions) -> None:
    queue = await small_queue()
    tasks = quarters(queue, 11)
    tasks[7] = queue.task(payload=os.urandom(LIMIT // 2))
    added = await queue.engine(options).add(tasks)
    assert [(one.id, one.new) for one in added] == [(task.id, True) for task in tasks]
    worker, claimed = queue.engine(), list[str]()
    while found := await claim(worker, limit=2):
        claimed += [task.id for task in found]
    assert claimed == [task.id for task in tasks] if options is DIRECT else set(claimed) == {task.id for task in tasks}


async def test_results_that_are_too_large_for_one_record_get_several() -> None:
    queue = await small_queue()
    engine = queue.engine(DIRECT)
    await engine.add([queue.task() for _ in range(20)])
    claimed = await claim(engine, limit=20)
    assert await engine.apply([complete(task, os.urandom(LIMIT // 4)) for task in claimed]) == [True] * 20
    assert len(await queue.engine().find(Filter(statuses=(Status.COMPLETED,)), limit=99)) == 20


async def test_parts_of_a_sharded_log_are_divided_too() -> None:
    queue = await _sharded_queue()
    engine, tasks = queue.engine(DIRECT), quarters(queue, 20)
    assert [one.id for one in await engine.add(tasks)] == [task.id for task in tasks]
    claimed = list[Task]()
    while found := await claim(engine, limit=2):  # of one shard, so it may be one
        claimed += found
    assert {task.id for task in claimed} == {task.id for task in tasks}
    assert await engine.apply([complete(task, os.urandom(LIMIT // 4)) for task in claimed]) == [True] * 20


async def test_nothing_is_stored_of_a_call_with_a_task_that_is_too_large_alone() -> None:
    queue = await small_queue()
    engine = queue.engine(DIRECT)
    with pytest.raises(ObjectTooLarge):
        await engine.add([*quarters(queue, 5), too_large(queue), *quarters(queue, 5)])
    assert await claim(engine) == []


@pytest.mark.parametrize("is_sharded", [False, True], ids=["one shard", "two shards"])
async def test_only_the_caller_of_a_task_that_is_too_large_gets_an_error(*, is_sharded: bool) -> None:
    queue = await (_sharded_queue() if is_sharded else small_queue())
    async with Client(queue.engine(DIRECT), clock=queue.clock) as client:
        values = [os.urandom(LIMIT if n == 5 else LIMIT // 8).hex() for n in range(20)]
        results = await asyncio.gather(*(client.enqueue("t", {"x": value}) for value in values), return_exceptions=True)
        failed = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
        assert failed == [5] and isinstance(results[5], ObjectTooLarge)
        assert len(await client.engine.find(Filter(statuses=(Status.PENDING,)), limit=99)) == 19


async def test_a_worker_settles_results_that_are_too_large_together_and_fails_one_that_is_too_large_alone() -> None:
    queue, gate, started = await small_queue(), asyncio.Event(), list[int]()

    async def work(n: int) -> str:
        started.append(n)
        await gate.wait()  # so that all end together
        return os.urandom(LIMIT if n == 3 else LIMIT // 8).hex()

    registry = Registry()
    registry.add(make_handler(work, type="work", options=make_options(work)))
    async with Client(queue.engine(DIRECT), clock=queue.clock) as client, asyncio.timeout(60):
        ids = [(await client.enqueue("work", {"n": n}, max_retries=2)).id for n in range(12)]
        worker = Worker(client, registry, WorkerSettings(concurrency=12, poll=0.1))
        working = asyncio.create_task(worker.run())
        await until(lambda: len(started) == 12)
        gate.set()
        await until(_are_finished, client, ids)
        worker.stop()
        await working
        tasks = [task for task in await client.engine.get(ids) if task]
    assert [n for n, task in enumerate(tasks) if task.status is not Status.COMPLETED] == [3]
    assert tasks[3].status is Status.FAILED and "because of its size" in str(tasks[3].error)


async def _writes(queue: Queue, engine: ReplicatedLogEngine, bucket: CountingBucket) -> int:
    """The requests of concurrent calls that fit into one record together."""
    before = bucket.requests["put"]
    await asyncio.gather(*(engine.add([queue.task(payload=os.urandom(LIMIT // 64))]) for _ in range(32)))
    return bucket.requests["put"] - before


async def test_calls_share_records_after_a_call_was_refused_again_and_again() -> None:
    queue = await small_queue()
    bucket = CountingBucket(queue.bucket)
    engine = queue.engine(DIRECT, bucket=bucket)
    for _ in range(20):
        with pytest.raises(ObjectTooLarge):
            await engine.add([too_large(queue)])
    assert await _writes(queue, engine, bucket) == 1


async def test_calls_share_records_again_after_a_refused_batch() -> None:
    queue = await small_queue()
    bucket = CountingBucket(queue.bucket)
    engine = queue.engine(DIRECT, bucket=bucket)
    for _ in range(3):
        await asyncio.gather(engine.add([queue.task()]), *(engine.add(quarters(queue, 3)) for _ in range(4)))
    for _ in range(40):
        await engine.add([queue.task()])
    assert await _writes(queue, engine, bucket) == 1


async def _next_batch(place: Place) -> SubmissionBatch:
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    return batch


async def test_an_object_that_the_store_refuses_is_tried_again_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    await place.stream.submit([new(1)])
    for _ in range(2):
        place.inbox.refuse_size(await _next_batch(place))
        await place.inbox.scan()
        assert place.inbox.is_empty
        place.clock.advance(61)
    await place.consume()
    assert place.tables.numbers() == [1]
    assert caplog.text.count("because of its size") == 1


async def test_batches_that_the_store_refused_grow_again() -> None:
    place = Place()
    for n in range(12):
        await place.new_stream().submit([new(n)])
    whole = await _next_batch(place)
    place.inbox.refuse_size(whole)
    half = await _next_batch(place)
    assert (len(whole.waiting), len(half.waiting)) == (12, 6)
    for _ in range(2):
        await place.inbox.settle(SubmissionBatch({}))
        sizes = len((await _next_batch(place)).waiting)
        place.clock.advance(61)
    assert sizes == 12
