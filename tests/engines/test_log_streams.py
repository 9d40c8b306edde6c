"""The stream of a producer without a replica: one write for each batch, and no number is used twice."""

import asyncio
from contextlib import suppress

import pytest

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines.replicated_log.submission_batch import forget_producers, old_producers
from qo.engines.replicated_log.submission_inbox import SubmissionInbox
from qo.engines.replicated_log.submissions import SubmissionStream
from qo.errors import BadBatch, OutcomeUnknown
from qo.testing import Faults, FaultyBucket, ManualClock
from qo.testing.samples import new, task_id
from tests.engines.fast_time import run
from tests.engines.gated_bucket import GatedBucket
from tests.engines.log_inbox import LOG, SHARD, Place


@pytest.fixture
def place() -> Place:
    return Place()


async def test_a_submission_costs_one_write_and_reads_nothing() -> None:
    clock = ManualClock()
    bucket = CountingBucket(MemoryBucket(clock))
    stream = SubmissionStream(bucket, LOG, SHARD)
    assert await stream.submit([new(1), new(2)]) == [(task_id(1), True), (task_id(2), True)]
    assert await stream.submit([new(3)]) == [(task_id(3), True)]
    assert bucket.requests == {"put": 2}


async def test_a_large_batch_is_split(place: Place) -> None:
    await place.stream.submit([new(n) for n in range(4001)])
    await place.stream.submit([new(n, payload=bytes(3 * 1024 * 1024)) for n in (5000, 5001, 5002)])
    assert len(await place.waiting()) == 4
    await place.consume(times=4)
    assert place.tables.numbers() == [*range(4001), 5000, 5001, 5002]


async def test_a_batch_with_a_task_twice_is_refused(place: Place) -> None:
    with pytest.raises(BadBatch):
        await place.stream.submit([new(1), new(1)])
    assert await place.waiting() == []


async def test_a_stream_ends_after_an_unknown_outcome_and_when_its_caller_is_cancelled(place: Place) -> None:
    gated = GatedBucket(place.bucket)
    stream = SubmissionStream(gated, LOG, SHARD)
    gated.write_answers.clear()
    submit = asyncio.create_task(stream.submit([new(1)]))
    await gated.written.wait()
    submit.cancel()
    await asyncio.wait([submit])
    gated.write_answers.set()
    await stream.submit([new(2)])
    first, second = await place.waiting()
    assert first.rpartition("/")[0] != second.rpartition("/")[0]
    await place.consume()
    assert sorted(place.tables.numbers()) == [1, 2]


async def test_an_idle_stream_begins_anew_and_its_row_is_forgotten(place: Place) -> None:
    await place.stream.submit([new(1)])
    await place.consume()
    place.clock.advance(1801)
    await place.stream.submit([new(2)])
    await place.consume()
    assert len(place.tables.rows()) == 2

    async def forget(now: float) -> int:
        before = len(place.tables.rows())
        idle = await place.inbox.without_objects(place.tables.run(lambda table: old_producers(table, now)))
        place.tables.run(lambda table: forget_producers(table, idle, now))
        return before - len(place.tables.rows())

    assert await forget(place.clock() + 86_400 - 1) == 1
    (producer,) = [producer for producer, _ in place.tables.rows()]
    await place.put(producer, 0, 2)  # a deletion failed: without the row, the object would be added again
    assert await forget(place.clock() + 86_401) == 0
    await place.consume()
    assert await forget(place.clock() + 86_401) == 1


class SleepyBucket(MemoryBucket):
    """The first write is lost, and then the machine sleeps."""

    def __init__(self, sleep: float) -> None:
        self.clock, self.sleep, self.writes = ManualClock(), sleep, 0
        super().__init__(self.clock)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self.writes += 1
        self.clock.advance(self.sleep)
        if self.writes == 1:
            raise OutcomeUnknown("lost")
        return await super().put(key, data, expected=expected)


def test_a_write_is_not_repeated_when_its_row_may_be_forgotten() -> None:
    async def submit(sleep: float) -> int:
        bucket = SleepyBucket(sleep)
        place = Place(bucket)
        stream = SubmissionStream(bucket, LOG, SHARD, elapsed=lambda: 0.0, wall=bucket.clock)
        with suppress(OutcomeUnknown):
            await stream.submit([new(1)])
        return len(await place.waiting())

    assert run(submit(1000.0)) == 1
    assert run(submit(2000.0)) == 0


@pytest.mark.parametrize("seed", range(20))
def test_histories_with_lost_answers_add_each_submission_once(seed: int) -> None:
    async def history() -> None:
        place = Place()
        bucket = FaultyBucket(place.bucket, Faults(seed, lost_request=0.1, lost_response=0.2, late=0.1, refused=0.1))
        streams = [SubmissionStream(bucket, LOG, SHARD) for _ in range(3)]
        inboxes = [SubmissionInbox(bucket, LOG, SHARD) for _ in range(2)]
        for n in range(30):
            await streams[n % 3].submit([new(n)])
            await place.consume(inboxes[n % 2])
        await bucket.settle()
        for inbox in inboxes:
            await place.consume(inbox, times=4)
        assert sorted(place.tables.numbers()) == [*range(30)]
        assert place.tables.note_names() == []

    run(history())
