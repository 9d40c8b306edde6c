"""The inbox of a log: each submission is added once, whatever is listed, deleted, damaged or forged."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from qo.bucket import ANY, Blob
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.keys import submission_key
from qo.engines.replicated_log.submission_inbox import SubmissionInbox
from qo.engines.replicated_log.submissions import encode_submission
from qo.ids import new_token
from qo.testing import ManualClock
from qo.testing.samples import new, task_id
from tests.engines.log_inbox import LOG, SHARD, Place, Tables, producers


@pytest.fixture
def place() -> Place:
    return Place()


async def test_submissions_are_added_in_order_and_deleted(place: Place) -> None:
    other = place.new_stream()
    await place.stream.submit([new(3), new(1)])
    await other.submit([new(2)])
    await place.stream.submit([new(0)])
    await place.consume()
    assert [n for n in place.tables.numbers() if n != 2] == [3, 1, 0]
    assert sorted(place.tables.numbers()) == [0, 1, 2, 3]
    assert await place.waiting() == []
    assert sorted(following for _, following in place.tables.rows()) == [1, 2]
    assert place.inbox.is_empty


async def test_an_object_listed_twice_is_added_once(place: Place) -> None:
    await place.stream.submit([new(1)])
    (key,) = await place.waiting()
    place.inbox.notice([key, key, "log/meta.json", "foreign"])
    await place.consume()
    place.inbox.notice([key])  # from a listing that began before the object was deleted
    await place.consume()
    assert place.tables.numbers() == [1]
    assert place.inbox.is_empty


async def test_a_kill_between_commit_and_delete(place: Place) -> None:
    await place.stream.submit([new(1)])
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    place.tables.commit(batch)
    assert len(await place.waiting()) == 1  # nothing is deleted before the commit
    await place.consume(SubmissionInbox(place.bucket, LOG, SHARD))
    assert (place.tables.numbers(), await place.waiting()) == ([1], [])


async def test_a_transaction_that_is_rolled_back_loses_nothing(place: Place) -> None:
    await place.stream.submit([new(1)])
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    Tables().commit(batch)  # the record of this transaction lost its race, and nothing of it is kept
    again = place.inbox.batch()
    assert again is not None
    assert again.waiting == batch.waiting
    await place.consume()
    assert (place.tables.numbers(), await place.waiting()) == ([1], [])


async def test_a_late_duplicate_after_consumption(place: Place) -> None:
    """A write that was repeated arrives a second time after its object was deleted."""
    (producer,) = producers("a")
    await place.put(producer, 0, 1)
    await place.consume()
    await place.put(producer, 0, 1)
    place.tables.db.execute("DELETE FROM tasks")  # even if the task is finished and deleted
    await place.consume()
    assert (place.tables.numbers(), await place.waiting()) == ([], [])


async def test_a_consumer_that_slept_reads_again_what_others_may_have_added(place: Place) -> None:
    """Its producer may be forgotten, and its tasks finished and deleted."""
    await place.stream.submit([new(1)])
    await place.stream.submit([new(2)])
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    place.clock.advance(3601)
    await place.bucket.delete((await place.waiting())[0])
    place.tables.commit(batch)
    await place.inbox.settle(batch)
    assert place.tables.numbers() == []
    await place.inbox.read()
    fresh = place.inbox.batch()
    assert fresh is not None
    assert [task.id for found in fresh.waiting.values() for task in found.tasks] == [task_id(2)]


class BlindBucket(MemoryBucket):
    """A listing lacks some objects."""

    hidden: frozenset[str] = frozenset()

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async for key in super().keys(prefix, after=after):
            if key not in self.hidden:
                yield key


@pytest.mark.parametrize("missed", [(0,), (2,), (0, 1, 2), tuple(range(99))])
async def test_a_listing_that_misses_an_object_loses_no_submission(missed: tuple[int, ...]) -> None:
    bucket = BlindBucket(ManualClock())
    place, (producer,) = Place(bucket), producers("a")
    keys = [await place.put(producer, n, n) for n in range(100)]
    bucket.hidden = frozenset(keys[n] for n in missed)
    await place.consume(times=12)
    assert place.tables.numbers() == [*range(100)]
    assert place.tables.note_names() == []
    bucket.hidden = frozenset()
    assert await place.waiting() == []


async def test_a_deletion_within_a_wide_gap_costs_only_what_was_deleted() -> None:
    bucket = BlindBucket(ManualClock())
    place, (producer,) = Place(bucket), producers("a")
    keys = [await place.put(producer, n, n) for n in range(100)]
    bucket.hidden = frozenset(keys[:99])
    await bucket.delete(keys[63])  # the last number that is read by its name at once
    await place.consume(times=12)
    assert place.tables.numbers() == [n for n in range(100) if n != 63]
    assert place.tables.note_names() == [f"quarantine/submissions/{producer}/0000003f"]


async def test_two_consumers_of_one_object_add_it_once(place: Place) -> None:
    await place.stream.submit([new(1)])
    await place.stream.submit([new(2)])
    inboxes = [SubmissionInbox(place.bucket, LOG, SHARD) for _ in range(2)]
    batches = []
    for inbox in inboxes:
        await inbox.scan()
        await inbox.read()
        batches.append(inbox.batch())
    place.tables.db.execute("DELETE FROM tasks")
    for inbox, batch in zip(inboxes, batches, strict=True):
        assert batch is not None
        place.tables.commit(batch)
        await inbox.settle(batch)
    assert place.tables.numbers() == [1, 2]


async def test_a_deleted_submission_does_not_block_its_stream(place: Place) -> None:
    first, second = producers("a", "b")
    for n in range(5):
        await place.put(first, n, n)
    await place.put(second, 0, 7)
    for n in (1, 2):
        await place.bucket.delete(submission_key(LOG, SHARD, first, n))
    await place.consume()
    assert sorted(place.tables.numbers()) == [0, 7]  # what comes after the gap waits until the gap is examined
    await place.consume(times=2)
    assert sorted(place.tables.numbers()) == [0, 3, 4, 7]
    assert place.tables.note_names() == [f"quarantine/submissions/{first}/00000001"]
    assert await place.waiting() == []


async def test_a_forged_number_does_not_cost_a_request_for_each_one_before(place: Place) -> None:
    (producer,) = producers("a")
    await place.put(producer, 2**32 - 1, 1)
    await place.consume(times=3)
    assert place.tables.numbers() == [1]


async def test_what_a_consumer_takes_for_a_gap_may_have_been_added_by_another(place: Place) -> None:
    (producer,) = producers("a")
    for n in range(3):
        await place.put(producer, n, n)
    late = SubmissionInbox(place.bucket, LOG, SHARD)
    await late.scan()
    await place.bucket.delete(submission_key(LOG, SHARD, producer, 0))  # as the other consumer would, after its commit
    await late.read()
    batch = late.batch()
    assert batch is not None
    place.tables.commit(batch)  # on a replica that does not know the other's record
    await late.settle(batch)
    assert place.tables.numbers() == []
    await place.put(producer, 0, 0)
    await place.consume()  # the other one
    await place.consume(late, times=2)
    assert place.tables.numbers() == [0, 1, 2]
    assert place.tables.note_names() == []


def spoiled(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


async def test_a_damaged_submission_blocks_nothing(place: Place) -> None:
    first, second = producers("a", "b")
    for n in range(3):
        key = await place.put(first, n, n)
        if n == 1:
            blob = await place.bucket.get(key)
            assert blob is not None
            await place.bucket.put(key, spoiled(blob.data), expected=ANY)
            damaged = key
    await place.put(second, 0, 7)
    await place.consume(times=2)
    await place.consume(SubmissionInbox(place.bucket, LOG, SHARD))  # a new process keeps it, too
    assert place.tables.numbers() == [0, 2, 7]
    assert await place.waiting() == [damaged]
    assert place.tables.note_names() == [f"quarantine/submissions/{first}/00000001"]
    assert place.inbox.is_empty


class OnceSpoiled(MemoryBucket):
    """The first response of each object has a flipped bit."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.spoiled: set[str] = set()

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        if blob is None or key in self.spoiled:
            return blob
        self.spoiled.add(key)
        return blob._replace(data=spoiled(blob.data))


async def test_one_damaged_response_is_read_again() -> None:
    bucket = OnceSpoiled(ManualClock())
    place = Place(bucket)
    await place.stream.submit([new(1)])
    await place.consume()
    assert (place.tables.numbers(), place.tables.note_names()) == ([1], [])
    assert bucket.spoiled


@pytest.mark.parametrize(
    "task",
    [new(1, queue="two words"), new(1, id="x"), new(1, timeout=-1.0), new(1, idempotency_key="k")],
    ids=["queue", "id", "timeout", "key"],
)
async def test_a_forged_task_is_set_aside(place: Place, task: Any) -> None:
    (producer,) = producers("a")
    data = encode_submission(producer, SHARD, 0, [task], at=0.0, writer=new_token())
    await place.bucket.put(submission_key(LOG, SHARD, producer, 0), data, expected=ANY)
    await place.put(producer, 1, 2)
    await place.consume(times=2)
    assert place.tables.numbers() == [2]
    assert place.tables.note_names() == [f"quarantine/submissions/{producer}/00000000"]


@pytest.mark.parametrize(("at", "created"), [(0.0, -1800.0), (1e10, 0.0), (-60.0, -60.0)])
async def test_a_task_is_as_old_as_its_submission_but_a_forged_time_gains_little(
    place: Place, at: float, created: float
) -> None:
    now = place.bucket.now()
    (producer,) = producers("a")
    await place.put(producer, 0, 1, at=at if abs(at) > 60 or not at else now + at)
    await place.consume()
    assert place.tables.db.execute("SELECT created_at FROM tasks").get == now + created


async def test_an_object_that_cannot_be_added_is_set_aside_alone(place: Place) -> None:
    for n in range(3):
        await place.stream.submit([new(n)])
    await place.inbox.scan()
    for _ in range(8):
        await place.inbox.read()
        if (batch := place.inbox.batch()) is None:
            break
        if any(task.id == task_id(1) and not found.problem for found in batch.waiting.values() for task in found.tasks):
            place.inbox.refuse(batch, ValueError("no"))
        else:
            place.tables.commit(batch)
            await place.inbox.settle(batch)
    assert place.tables.numbers() == [0, 2]
    assert len(place.tables.note_names()) == 1
    assert len(await place.waiting()) == 1


async def test_many_submissions_take_several_transactions(place: Place) -> None:
    streams = [place.new_stream() for _ in range(70)]
    for n, stream in enumerate(streams):
        await stream.submit([new(n)])
    await place.consume()
    assert len(place.tables.numbers()) == 32
    await place.consume(times=2)
    assert sorted(place.tables.numbers()) == [*range(70)]
