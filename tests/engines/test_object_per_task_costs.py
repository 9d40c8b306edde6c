"""The number of requests of the layout `tasks`."""

import asyncio
import tracemalloc
from collections import Counter

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines.object_per_task import ObjectPerTaskEngine, TasksOptions
from qo.model import Filter, Status, cancel, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import loop_clock, run

TASKS = 320
CONTENDED_TASKS = 60 * 32  # the fewer tasks per worker, the more conflicts


async def _live(engine: ObjectPerTaskEngine, worker: str, batch: int, done: Counter[str]) -> None:
    while tasks := await claim(engine, limit=batch, worker_id=worker):
        assert await engine.apply([complete(task) for task in tasks]) == [True] * len(tasks)
        done.update(task.id for task in tasks)
    await engine.close()


def test_a_task_costs_five_puts_one_get_and_two_deletes_through_its_life() -> None:
    async def lives() -> Counter[str]:
        bucket = CountingBucket(MemoryBucket())
        producer, worker = ObjectPerTaskEngine(bucket), ObjectPerTaskEngine(bucket)
        await producer.add([new(n) for n in range(TASKS)])
        done: Counter[str] = Counter()
        await _live(worker, "w1", 32, done)
        assert len(done) == TASKS
        return bucket.requests

    requests = run(lives())
    assert requests["put"] == 5 * TASKS
    assert requests["get"] <= TASKS + 1  # one for the lane
    assert requests["delete"] == 2 * TASKS
    assert requests["list"] <= TASKS / 32 + 1


def test_thirty_two_workers_rarely_try_the_same_task() -> None:
    async def lives() -> Counter[str]:
        store = MemoryBucket(loop_clock)
        bucket = CountingBucket(SlowBucket(store))
        await ObjectPerTaskEngine(store).add([new(n << 20) for n in range(CONTENDED_TASKS)])
        done: Counter[str] = Counter()
        engines = [ObjectPerTaskEngine(bucket) for _ in range(32)]
        await asyncio.gather(*(_live(engine, f"w{n}", 4, done) for n, engine in enumerate(engines)))
        assert done == Counter(task_id(n << 20) for n in range(CONTENDED_TASKS))  # all tasks, each once
        return bucket.requests

    requests = run(lives())
    # One worker alone needs 3 puts, 1 get and 2 deletes a task. Measured here: 3.4, 1.44 to 1.50, and 2.2.
    most = {"put": 3.75, "get": 1.6, "delete": 2.5}
    for kind, number in most.items():
        assert requests[kind] <= number * CONTENDED_TASKS, kind


def test_an_idle_wait_lists_less_and_less_often() -> None:
    async def waits() -> int:
        bucket = CountingBucket(MemoryBucket())
        await ObjectPerTaskEngine(bucket).wait(claim_request(), 60)
        assert set(bucket.requests) == {"list"}
        return bucket.requests["list"]

    assert run(waits()) <= 18  # intervals of 100 ms, doubling to 5 s; one listing each


def test_tasks_that_are_not_due_cost_a_claim_nothing() -> None:
    async def claims() -> Counter[str]:
        clock = ManualClock()
        store = MemoryBucket(clock)
        engine = ObjectPerTaskEngine(store, clock=clock)
        await engine.add([new(n, delay=3600.0) for n in range(3000)])
        await engine.add([new(5000)])
        bucket = CountingBucket(store)
        assert len(await claim(ObjectPerTaskEngine(bucket, clock=clock))) == 1
        return bucket.requests

    requests = run(claims())
    assert (requests["list"], requests["get"]) == (1, 2)


def test_a_deep_queue_is_read_once_for_many_claims() -> None:
    async def claims() -> Counter[str]:
        clock = ManualClock()
        store = MemoryBucket(clock)
        await ObjectPerTaskEngine(store, clock=clock).add([new(n << 20) for n in range(2000)])
        bucket = CountingBucket(store)
        engine = ObjectPerTaskEngine(bucket, TasksOptions(ready_page_size=100), clock=clock)
        for n in range(50):
            assert [task.id for task in await claim(engine, limit=1)] == [task_id(n << 20)]
        await engine.close()
        return bucket.requests

    assert run(claims())["list"] <= 50


def test_finished_tasks_are_read_by_one_process_and_not_by_all() -> None:
    async def counts() -> Counter[str]:
        store = MemoryBucket()
        engine = ObjectPerTaskEngine(store)
        await engine.add([new(n) for n in range(600)])
        await engine.apply([cancel(task_id(n)) for n in range(600)])
        await engine.close()
        first, bucket = ObjectPerTaskEngine(store), CountingBucket(store)
        assert list((await first.count()).values()) == [600]
        assert list((await ObjectPerTaskEngine(bucket).count()).values()) == [600]
        return bucket.requests

    assert run(counts())["get"] == 1


def test_a_listing_of_one_shard_reads_only_that_shard() -> None:
    async def lists() -> tuple[Counter[str], Counter[str]]:
        store = MemoryBucket()
        engine = ObjectPerTaskEngine(store)
        await engine.add([new(n << 24) for n in range(256)])  # 16 in each shard
        await engine.apply([complete(task) for task in await claim(engine, limit=256)])
        await engine.add([new((n << 24) + 1) for n in range(256)])
        await engine.close()
        live, every = CountingBucket(store), CountingBucket(store)
        pending = await ObjectPerTaskEngine(live).find(Filter(shards=("3",), statuses=(Status.PENDING,)), limit=100)
        both = await ObjectPerTaskEngine(every).find(Filter(shards=("3",)), limit=100)
        assert (len(pending), len(both)) == (16, 32)
        return live.requests, every.requests

    live, every = run(lists())
    assert live == {"list": 2, "get": 16 + 1}  # the shard and what is due later; one for the lane
    assert every == {"list": 1, "get": 32}


def test_a_history_that_fits_into_the_document_is_one_request() -> None:
    async def asks() -> Counter[str]:
        store = MemoryBucket()
        engine = ObjectPerTaskEngine(store)
        await engine.add([new()])
        await engine.apply([complete(task) for task in await claim(engine)])
        bucket = CountingBucket(store)
        assert len(await ObjectPerTaskEngine(bucket).history(task_id(0))) == 3
        return bucket.requests

    assert run(asks()) == {"get": 1}


def test_a_claim_of_a_deep_queue_reads_only_the_first_entries() -> None:
    """Measured by the memory of a claim, which holds the entries that it examines."""

    async def bytes_of_a_claim() -> int:
        engine = ObjectPerTaskEngine(MemoryBucket(), TasksOptions(ready_page_size=100), clock=ManualClock())
        await engine.add([new(n << 20, type=f"t{n}", priority=n % 10) for n in range(2000)])
        await claim(engine, limit=1)  # lists the queue
        tracemalloc.start()
        try:
            assert len(await claim(engine, limit=1)) == 1
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert asyncio.run(bytes_of_a_claim()) < 40_000  # 78,000 if a claim examines all 2,000 entries, 15,000 if not
