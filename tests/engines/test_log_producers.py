"""Producers of a log: which tasks go into the inbox, what that costs, and who adds them to the log."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from qo.bucket import Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.buckets.request_counter import CountingBucket
from qo.engine import Engine
from qo.engines.large_values import LargeValuesEngine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.engines.replicated_log import engine as log_engine
from qo.engines.replicated_log.keys import submissions_prefix
from qo.engines.replicated_log.log_meta import read_meta
from qo.errors import Refused
from qo.ids import new_id
from qo.model import Filter, NewTask, complete
from qo.testing import Faults, FaultyBucket, ManualClock
from qo.testing.samples import claim, claim_request, new
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run

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


@pytest.fixture
async def queue() -> Queue:
    return await Queue().create()


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue is too large to load it for one submission."""
    monkeypatch.setattr(log_engine, "_MAX_LOADED_BYTES", -1)


async def test_a_new_queue_may_begin_with_its_inbox() -> None:
    queue = Queue()
    task = queue.task()
    await queue.engine(INBOX).add([task])
    assert len(await queue.waiting()) == 1
    await queue.engine().repair()
    assert [found.id for found in await claim(queue.engine())] == [task.id]


async def test_a_repeated_submission_is_recognised_by_its_process(queue: Queue) -> None:
    engine, task, other = queue.engine(INBOX), queue.task(), queue.task()
    await engine.add([task])
    assert await engine.add([task, other]) == [(task.id, False), (other.id, True)]
    await queue.engine(INBOX).add([task])
    await queue.engine().repair()
    assert Counter(found.id for found in await claim(queue.engine())) == Counter([task.id, other.id])


@pytest.mark.usefixtures("all_large")
async def test_submissions_of_a_process_keep_their_order(queue: Queue) -> None:
    engine = queue.engine()
    tasks = [queue.task(), queue.task(), queue.task(idempotency_key="k"), queue.task()]
    for task in tasks:
        await engine.add([task])
    assert [found.id for found in await claim(queue.engine())] == [task.id for task in tasks]


def test_an_idle_worker_lists_records_and_submissions_with_one_request() -> None:
    async def work() -> None:
        queue = await Queue().create()
        bucket = CountingBucket(SlowBucket(queue.bucket))
        worker = queue.engine(bucket=bucket)
        assert await claim(worker) == []
        await worker.wait(claim_request(), 120.0)
        before = bucket.requests.copy()
        await worker.wait(claim_request(), 1000.0)
        made = bucket.requests - before
        assert made.total() <= 101
        assert "get" not in made
        await queue.engine(DIRECT).add([new(1)])
        await worker.wait(claim_request(), 1000.0)
        assert len(await claim(worker)) == 1
        await worker.close()

    run(work())


async def test_a_large_value_of_an_unconsumed_submission_survives_repair(queue: Queue) -> None:
    def whole(options: LogOptions) -> Engine:
        return LargeValuesEngine(queue.engine(options), queue.bucket, inline=10, clock=queue.clock)

    task = queue.task(payload=b'"' + b"x" * 100 + b'"')
    await whole(INBOX).add([task])
    queue.clock.advance(7200)  # an orphan would be removed by now
    await whole(DIRECT).repair()
    assert [found.payload for found in await claim(whole(DIRECT))] == [task.payload]


class Unreadable(MemoryBucket):
    """A store that lets a producer read only the name of the log."""

    is_closed = False

    async def get(self, key: str) -> Blob | None:
        if self.is_closed and key != "log/meta.json" and "/submissions/" not in key:
            raise Refused(f"the credentials may not read {key}")
        return await super().get(key)


async def test_a_producer_that_may_not_read_the_log_uses_the_inbox() -> None:
    queue = Queue()
    bucket = queue.bucket = Unreadable(queue.clock)
    await queue.create()
    bucket.is_closed = True
    engine, task = queue.engine(), queue.task()
    assert await engine.add([task]) == [(task.id, True)]
    with pytest.raises(Refused):
        await engine.get([task.id])
    bucket.is_closed = False
    await queue.engine().repair()
    assert [found.id for found in await claim(queue.engine())] == [task.id]


@pytest.mark.parametrize("seed", range(3))
def test_histories_with_inbox_and_direct_producers(seed: int) -> None:
    """Each task runs once, whoever submits it and however often answers are lost."""

    async def history() -> None:
        queue = await Queue().create()
        bucket = FaultyBucket(
            queue.bucket, Faults(seed, lost_request=0.03, lost_response=0.06, late=0.03, refused=0.03)
        )
        producers = [queue.engine(options, bucket) for options in (INBOX, INBOX, DIRECT)]
        workers = [queue.engine(bucket=bucket) for _ in range(2)]
        tasks = [queue.task() for _ in range(30)]
        done = Counter[str]()

        async def submit(number: int) -> None:
            for task in tasks[number::3]:
                await producers[number].add([task])
                await pass_time(0.2)

        async def drain(worker: Engine) -> None:
            while done.total() < len(tasks):
                for task in await claim(worker, limit=3):
                    assert await worker.apply([complete(task)]) == [True]
                    done[task.id] += 1
                await worker.wait(claim_request(), 1.0)

        await asyncio.gather(*(submit(number) for number in range(3)), *(drain(worker) for worker in workers))
        assert done == Counter(task.id for task in tasks)
        await bucket.settle()
        await queue.engine().repair()
        assert len(await queue.engine().find(Filter(), limit=99)) == len(tasks) + 1

    run(history())
