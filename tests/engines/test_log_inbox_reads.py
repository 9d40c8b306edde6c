"""What waits in the inbox of a log is part of the queue: readers add it first, and a worker before it goes idle."""

import asyncio
from typing import Never

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.errors import Refused
from qo.model import Filter, Status
from qo.testing.samples import claim, claim_request
from tests.engines.fast_time import pass_time, run
from tests.engines.log_queue import DIRECT, INBOX, Queue


async def test_a_reader_sees_a_task_that_another_process_has_just_submitted() -> None:
    queue = await Queue().create()
    reader, producer = queue.engine(), queue.engine(INBOX)
    seen = await reader.count()
    found, got, counted = queue.task(), queue.task(), queue.task()
    await producer.add([found])
    assert found.id in {task.id for task in await reader.find(Filter(), limit=9)}
    await producer.add([got])
    assert None not in await reader.get([got.id])
    await producer.add([counted])
    assert sum((await queue.engine().count()).values()) == sum(seen.values()) + 3
    assert [event.status for event in await reader.history(counted.id)] == [Status.PENDING]
    assert await queue.waiting() == []


async def test_a_batch_is_counted_with_what_waits_although_the_reader_has_just_read_the_log() -> None:
    queue = await Queue().create()
    reader, producer = queue.engine(), queue.engine(INBOX)
    await producer.add([queue.task(batch="b")])
    await reader.add([queue.task()])
    assert sum((await reader.count("b")).values()) == 1


def test_frequent_reads_list_the_inbox_once_a_second() -> None:
    async def read() -> None:
        queue = await Queue().create()
        bucket = CountingBucket(queue.bucket)
        reader = queue.engine(bucket=bucket)
        for _ in range(200):
            await reader.find(Filter(), limit=9)
            await pass_time(0.05)
        assert 10 <= bucket.requests["list"] <= 20
        await reader.close()

    run(read())


async def test_reading_tasks_that_the_log_has_lists_nothing() -> None:
    queue = await Queue().create()
    bucket = CountingBucket(queue.bucket)
    reader = queue.engine(bucket=bucket)
    [task] = await reader.find(Filter(), limit=1)
    before = bucket.requests["list"]
    for _ in range(3):
        assert None not in await reader.get([task.id])
        assert await reader.history(task.id)
    assert bucket.requests["list"] == before


def test_a_task_that_comes_within_a_minute_is_found_within_the_interval_of_a_poll() -> None:
    async def wait() -> float:
        queue = await Queue().create()
        worker, producer = queue.engine(), queue.engine(DIRECT)
        await claim(worker, limit=9)
        waiting = asyncio.create_task(worker.wait(claim_request(), 60))
        await pass_time(27)
        assert not waiting.done()
        began = asyncio.get_running_loop().time()
        await producer.add([queue.task()])
        await waiting
        return asyncio.get_running_loop().time() - began

    assert run(wait()) <= 0.25


class ReadOnlyBucket(MemoryBucket):
    def __init__(self, whole: MemoryBucket) -> None:
        self.__dict__ |= whole.__dict__
        self.refusals = 0

    async def put(self, *_: object, **__: object) -> Never:
        self.refusals += 1
        raise Refused("these credentials may not write")


async def test_a_reader_that_may_not_write_shows_what_the_log_has() -> None:
    queue = await Queue().create()
    await queue.engine(INBOX).add([queue.task()])
    bucket = ReadOnlyBucket(queue.bucket)
    reader = queue.engine(bucket=bucket)
    for _ in range(3):
        assert len(await reader.find(Filter(), limit=9)) == 1
    assert bucket.refusals == 1
    assert len(await queue.waiting()) == 1


async def test_a_worker_that_finds_no_task_looks_into_the_inbox_before_it_goes_idle() -> None:
    """A worker that drains the queue would end otherwise."""
    queue = await Queue().create()
    worker = queue.engine()
    assert await claim(worker) == []
    await queue.engine(INBOX).add([queue.task()])
    assert len(await claim(queue.engine())) == 1


async def test_a_key_is_never_submitted_through_the_inbox() -> None:
    queue = await Queue().create()
    producer = queue.engine(INBOX)
    task = queue.task(idempotency_key="key")
    [first], [second] = await producer.add([task]), await queue.engine(INBOX).add([task])
    assert (first.new, second.new, second.id) == (True, False, task.id)
    assert await queue.waiting() == []
