"""Producers of a log: which tasks go into the inbox, what that costs, and who adds them to the log."""

from collections import Counter

import pytest

from qo.bucket import Blob
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engine import Engine
from qo.engines.large_values import LargeValuesEngine
from qo.engines.replicated_log import LogOptions, inbox_choice
from qo.errors import Refused
from qo.testing.samples import claim, claim_request, new
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import run
from tests.engines.log_queue import DIRECT, INBOX, Queue


@pytest.fixture
async def queue() -> Queue:
    return await Queue().create()


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue is too large to load it for one submission."""
    monkeypatch.setattr(inbox_choice, "_MAX_LOADED_BYTES", -1)


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
