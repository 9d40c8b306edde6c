"""Reads of batches for pages that refresh: shared, kept if a request is cancelled, and few at a time."""

import asyncio
from collections import Counter

import pytest

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.client.batches import BatchReader, list_batches
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.errors import StorageError
from qo.model import Filter, cancel
from qo.testing.samples import new, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import loop_clock, run
from tests.engines.gated_bucket import GatedBucket

TASKS, BATCHES = 200, 20


async def filled(bucket: MemoryBucket, number: int = TASKS) -> None:
    engine = ObjectPerTaskEngine(bucket)
    await engine.add([new(n, batch=f"b{n % BATCHES}") for n in range(number)])
    await engine.close()


def test_the_batches_of_a_list_are_counted_in_one_pass() -> None:
    async def lists() -> Counter[str]:
        store = MemoryBucket()
        await filled(store)
        bucket = CountingBucket(store)
        listed = await list_batches(ObjectPerTaskEngine(bucket))
        assert {batch.id: batch.total for batch in listed} == {f"b{n}": TASKS // BATCHES for n in range(BATCHES)}
        return bucket.requests

    assert run(lists())["get"] <= 3.1 * TASKS  # the list, its later pages, and the counts


async def test_a_count_that_comes_during_a_scan_sees_what_was_written_before_it() -> None:
    store = MemoryBucket()
    await filled(store, 20)
    gated = GatedBucket(store)
    engine, writer = ObjectPerTaskEngine(gated), ObjectPerTaskEngine(store)
    gated.read_answers.clear()
    first = asyncio.create_task(engine.count("b0"))
    await gated.read.wait()
    await writer.add([new(100, batch="b0")])
    second, other = asyncio.create_task(engine.count("b0")), asyncio.create_task(engine.count("b1"))
    await asyncio.sleep(0)
    gated.read_answers.set()
    totals = [sum((await count).values()) for count in (first, second, other)]
    assert totals == [1, 2, 1]


async def test_a_count_whose_scan_was_started_by_a_cancelled_caller_is_right() -> None:
    store = MemoryBucket()
    await filled(store, 20)
    gated = GatedBucket(store)
    engine = ObjectPerTaskEngine(gated)
    gated.read_answers.clear()
    first, second = (asyncio.create_task(engine.count("b0")) for _ in range(2))
    await gated.read.wait()
    first.cancel()
    gated.read_answers.set()
    assert sum((await second).values()) == 1


def test_a_read_that_takes_longer_than_a_request_is_kept_for_the_next() -> None:
    async def reads() -> tuple[int, int]:
        store = MemoryBucket(loop_clock)
        await filled(store)
        bucket = CountingBucket(SlowBucket(store))
        reader = BatchReader(ObjectPerTaskEngine(bucket))
        number = 0
        for _ in range(1000):
            number += 1
            try:
                async with asyncio.timeout(0.05):
                    await reader.newest(Filter(), limit=50)
                break
            except TimeoutError:
                continue
        return number, bucket.requests["get"]

    number, gets = run(reads())
    assert 1 < number < 1000
    assert gets <= 3.1 * TASKS


async def test_an_unknown_batch_is_found_as_soon_as_it_has_tasks() -> None:
    engine = ObjectPerTaskEngine(SlowBucket(MemoryBucket()))
    reader = BatchReader(engine)
    assert (await reader.progress("b", Filter())).total == 0
    assert await reader.counts("b") == {}
    await engine.add([new(1, batch="b")])
    assert (await reader.progress("b", Filter())).total == 1
    assert sum((await reader.counts("b")).values()) == 1


async def test_a_request_that_joins_a_read_does_not_miss_a_batch_that_began_meanwhile() -> None:
    store = MemoryBucket()
    await filled(store, 20)
    gated = GatedBucket(store)
    reader = BatchReader(ObjectPerTaskEngine(gated))
    gated.read_answers.clear()
    before = asyncio.create_task(reader.counts("late"))
    await gated.read.wait()
    await ObjectPerTaskEngine(store).add([new(100, batch="late")])
    after = asyncio.create_task(reader.counts("late"))
    await asyncio.sleep(0)
    gated.read_answers.set()
    assert (sum((await before).values()), sum((await after).values())) == (0, 1)


async def test_unknown_names_do_not_start_reads_without_limit() -> None:
    store = MemoryBucket()
    await filled(store, 20)
    gated = GatedBucket(store)
    reader = BatchReader(ObjectPerTaskEngine(gated))
    gated.read_answers.clear()
    asked = [asyncio.create_task(reader.progress(f"unknown{n}", Filter())) for n in range(100)]
    await gated.read.wait()
    for request in asked:
        request.cancel()
    await asyncio.wait(asked)
    assert len(asyncio.all_tasks()) < 50  # eight reads, and one scan with its requests
    await reader.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_each_caller_of_a_failed_read_receives_the_error() -> None:
    class Broken(MemoryBucket):
        async def get(self, key: str) -> None:  # noqa: ARG002 - as the bucket
            raise StorageError("the store is away")

    async def reads() -> list[object]:
        store = Broken(loop_clock)
        await filled(store, 4)
        reader = BatchReader(ObjectPerTaskEngine(store))
        found = await asyncio.gather(*(reader.counts(f"b{n % 2}") for n in range(4)), return_exceptions=True)
        with pytest.raises(StorageError):
            await reader.counts("b0")
        return list(found)

    assert [str(error) for error in run(reads())] == ["the store is away"] * 4


async def test_a_deleted_task_is_no_longer_counted() -> None:
    engine = ObjectPerTaskEngine(MemoryBucket())
    await engine.add([new(1, batch="b"), new(2, batch="b")])
    await engine.apply([cancel(task_id(1))])
    assert sum((await engine.count("b")).values()) == 2
    await engine.delete([task_id(1)])
    assert sum((await engine.count("b")).values()) == 1
