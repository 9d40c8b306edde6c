"""The inbox of a log under odd conditions: old leftovers, large objects, wide gaps, endless producers, no deletions."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, DamagedCheckpoint
from qo.engines.replicated_log.keys import submission_key
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.submission_batch import forget_producers, old_producers
from qo.engines.replicated_log.submission_inbox import SubmissionInbox
from qo.engines.replicated_log.submissions import MAX_PAYLOADS, MAX_TASKS, SubmissionStream, encode_submission
from qo.engines.replicated_log.tail_proof import TailProof
from qo.errors import InvalidTask, OutcomeUnknown, Refused
from qo.ids import new_token
from qo.model import Filter, NewTask
from qo.testing import ManualClock
from qo.testing.samples import claim, new
from tests.engines.log_inbox import LOG, SHARD, Place, producers
from tests.engines.log_queue import DIRECT, INBOX, Queue

DAY = 86_400.0


async def test_a_copy_of_a_leftover_is_not_added_when_another_process_deletes_it() -> None:
    """The row of its producer is older than a day, and must not be forgotten before the copy is outdated."""
    place = Place()
    await place.stream.submit([new(1)])
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    place.tables.commit(batch, place.clock())  # and the worker is killed before it deletes the object
    place.tables.db.execute("DELETE FROM tasks")
    place.clock.advance(DAY + 3600)
    late = SubmissionInbox(place.bucket, LOG, SHARD, elapsed=place.clock, wall=place.clock)
    await late.scan()
    await late.read()
    monitor = SubmissionInbox(place.bucket, LOG, SHARD, elapsed=place.clock, wall=place.clock)
    await place.consume(monitor)
    assert await place.waiting() == []
    now = place.clock()
    idle = await monitor.without_objects(place.tables.run(lambda table: old_producers(table, now)))
    place.tables.run(lambda table: forget_producers(table, idle, now))
    copy = late.batch()
    assert copy is not None
    place.tables.commit(copy, now)
    assert place.tables.numbers() == []


async def test_a_process_that_slept_after_its_commit_leaves_the_deletion_to_others() -> None:
    place = Place()
    await place.stream.submit([new(1)])
    await place.inbox.scan()
    await place.inbox.read()
    batch = place.inbox.batch()
    assert batch is not None
    place.tables.commit(batch, place.clock())
    place.clock.advance(3601)
    await place.inbox.settle(batch)
    assert len(await place.waiting()) == 1
    await place.consume()
    assert (place.tables.numbers(), await place.waiting()) == ([1], [])


@pytest.mark.parametrize(
    "tasks",
    [
        [new(1, payload=bytes(MAX_PAYLOADS + 1))],
        [new(n) for n in range(MAX_TASKS + 1)],
        [new(n, payload=bytes(MAX_PAYLOADS)) for n in range(5)],
    ],
    ids=["payload", "tasks", "payloads"],
)
async def test_an_object_that_is_too_large_for_a_record_is_set_aside(tasks: list[NewTask]) -> None:
    place, (producer,) = Place(), producers("a")
    data = encode_submission(producer, SHARD, 0, tasks, at=0.0, writer=new_token())
    await place.bucket.put(submission_key(LOG, SHARD, producer, 0), data, expected=ANY)
    await place.put(producer, 1, 9999)
    await place.consume(times=2)
    assert place.tables.numbers() == [9999]
    assert place.tables.note_names() == [f"quarantine/submissions/{producer}/00000000"]


async def test_large_objects_are_not_added_by_one_transaction() -> None:
    place = Place()
    for n in range(5):
        await place.new_stream().submit([new(n, payload=bytes(3 * 1024 * 1024))])
    added = []
    for _ in range(3):
        await place.consume()
        added.append(len(place.tables.numbers()))
    assert added == [2, 4, 5]


async def test_a_task_too_large_for_the_inbox_is_committed_directly() -> None:
    queue = await Queue().create()
    task = queue.task(payload=bytes(MAX_PAYLOADS + 1))
    await queue.engine(INBOX).add([task])
    assert await queue.waiting() == []
    assert None not in await queue.engine().get([task.id])
    with pytest.raises(InvalidTask, match="payload"):
        await Place().stream.submit([task])


class OnceBlindBucket(MemoryBucket):
    """The first listing lacks some objects, which are stored while it goes on."""

    hidden: frozenset[str] = frozenset()

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        hidden, self.hidden = self.hidden, frozenset()
        async for key in super().keys(prefix, after=after):
            if key not in hidden:
                yield key


async def test_no_number_of_a_wide_gap_is_skipped_unseen() -> None:
    bucket = OnceBlindBucket(ManualClock())
    place, (producer,) = Place(bucket), producers("a")
    keys = [await place.put(producer, n, n) for n in range(100)]
    for key in keys[:70]:
        await bucket.delete(key)
    bucket.hidden = frozenset(keys[:99])
    await place.inbox.scan()
    for _ in range(4):
        await place.inbox.read()
        if batch := place.inbox.batch():
            place.tables.commit(batch, bucket.now())
            await place.inbox.settle(batch)
        await place.inbox.scan()
    assert place.tables.numbers() == [*range(70, 100)]
    assert place.tables.note_names() == [f"quarantine/submissions/{producer}/00000000"]


class StubbornBucket(MemoryBucket):
    """Deletes nothing. A loop that does not end fails."""

    requests = 0

    async def delete(self, key: str) -> None:
        raise Refused(f"{key}: no permission to delete")

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        self.requests += 1
        assert self.requests < 50, "this does not end"
        async for key in super().keys(prefix, after=after):
            yield key


async def test_a_producer_sees_its_tasks_although_deletes_fail() -> None:
    queue = Queue()
    queue.bucket = StubbornBucket(queue.clock)
    await queue.create()
    producer, task = queue.engine(INBOX), queue.task()
    await producer.add([task])
    assert sum((await producer.count()).values()) == 2
    assert None not in await producer.get([task.id])


class PopularBucket(MemoryBucket):
    """After each record, another task is submitted."""

    submit: Callable[[], Awaitable[object]] | None = None
    left = 50

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        if "/records/" in key and self.submit is not None:
            self.left -= 1
            await self.submit()
        return version


async def test_repair_ends_while_producers_go_on() -> None:
    queue = Queue()
    queue.bucket = bucket = PopularBucket(queue.clock)
    await queue.create()
    producer, first, worker = queue.engine(INBOX), queue.task(), queue.engine()
    await producer.add([first])

    async def submit() -> None:
        if bucket.left > 0:
            await producer.add([queue.task()])

    bucket.submit = submit
    await worker.repair()
    assert bucket.left > 40
    assert [task.id for task in await claim(worker, limit=1)] == [first.id]


def test_a_proof_that_began_before_a_reset_proves_nothing() -> None:
    clock = ManualClock()
    proof = TailProof(3600.0, clock, clock)
    start = proof.begin()
    proof.reset()
    proof.proved(start)
    assert not proof.is_trusted()
    proof.proved(proof.begin())
    assert proof.is_trusted()


class FullBucket(MemoryBucket):
    """Refuses all but the first objects of one kind."""

    kind, left = "nothing", 1

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.kind in key:
            self.left -= 1
            if self.left < 0:
                raise Refused("the bucket is full")
        return await super().put(key, data, expected=expected)


async def test_a_batch_of_which_a_part_is_stored_has_an_unknown_outcome() -> None:
    queue, tasks = Queue(), [new(n) for n in range(MAX_TASKS + 1)]
    queue.bucket = bucket = FullBucket(queue.clock)
    await queue.create()
    bucket.kind = "/records/"
    engine = queue.engine(DIRECT)
    with pytest.raises(OutcomeUnknown, match="full"):
        await engine.add(tasks)
    with pytest.raises(Refused, match="full"):  # nothing of it is stored
        await engine.add([new("other")])
    bucket.kind, bucket.left = "/submissions/", 1
    with pytest.raises(OutcomeUnknown, match="full"):
        await SubmissionStream(bucket, LOG, SHARD).submit(tasks)
    assert len(await engine.find(Filter(), limit=MAX_TASKS + 2)) == MAX_TASKS + 1


async def test_a_producer_reports_a_damaged_checkpoint() -> None:
    queue = await Queue().create()
    meta = await read_meta(queue.bucket)
    assert meta is not None
    await queue.bucket.delete(CheckpointStore(queue.bucket, meta.id, 0).key)
    with pytest.raises(DamagedCheckpoint):
        await queue.engine().add([queue.task()])
    assert await queue.waiting() == []
