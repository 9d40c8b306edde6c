"""Processes that meet at a cold segment: they load it together, die before their commit, or read it too late."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest
from msgspec.structs import replace

from qo.bucket import ANY, Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.replicated_log.doctor import examine_log
from qo.engines.replicated_log.loader import load_replica
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.record_store import RecordStore
from qo.engines.replicated_log.runner import run_inline
from qo.errors import Refused
from qo.model import Filter, Status, cancel, complete
from qo.sweep import Retention
from qo.testing.samples import claim, claim_request, new
from tests.engines.cold_queue import DEPTH, OPTIONS, ColdQueue
from tests.engines.fast_time import run
from tests.engines.log_checker import check_bucket, check_log
from tests.engines.log_history import RecordingBucket
from tests.engines.log_queue import INBOX
from tests.engines.log_replicas import write

_SUCCESSOR_INTERVAL = 1 if os.environ.get("QO_TORTURE") else 5  # writes
MOSTLY_COLD = replace(OPTIONS, hot_tasks=0, kept_tasks=0)


class HeldBucket(MemoryBucket):
    """A second way to a store, on which reads of segments wait."""

    def __init__(self, store: MemoryBucket) -> None:
        self._store = store
        self.keys, self.put, self.delete = store.keys, store.put, store.delete  # type: ignore[method-assign]
        self.versions, self.now = store.versions, store.now  # type: ignore[method-assign]
        self.is_read, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def get(self, key: str) -> Blob | None:
        if "/cold/" in key:
            self.is_read.set()
            await self.may_go_on.wait()
        return await self._store.get(key)


async def drained(engine: ReplicatedLogEngine, limit: int = 7) -> list[str]:
    ids: list[str] = []
    while some := await claim(engine, limit=limit):
        ids += [task.id for task in some]
        assert all(await engine.apply([complete(task) for task in some]))
    return ids


async def test_two_workers_load_the_same_segment() -> None:
    queue = ColdQueue(MOSTLY_COLD)
    ids = await queue.fill()
    ways = [HeldBucket(queue.bucket) for _ in range(2)]
    claims = [asyncio.create_task(claim(queue.engine(MOSTLY_COLD, way), limit=3)) for way in ways]
    for way in ways:
        await way.is_read.wait()
    for way in ways:
        way.may_go_on.set()
    claimed = [task.id for tasks in await asyncio.gather(*claims) for task in tasks]
    assert sorted(claimed) == sorted(ids[:6])
    assert await drained(queue.engine(MOSTLY_COLD)) == ids[6:]
    await check_bucket(queue.bucket)


async def test_two_engines_of_one_process_load_the_same_segment() -> None:
    """Both use one way to the store, and each serves several claims."""
    queue = ColdQueue(MOSTLY_COLD)
    ids = await queue.fill()
    engines = [queue.engine(MOSTLY_COLD) for _ in range(2)]
    answers = await asyncio.gather(*(claim(engine, limit=2) for engine in engines for _ in range(6)))
    claimed = [task.id for tasks in answers for task in tasks]
    assert sorted(claimed) == sorted(ids[: len(claimed)]) and len(claimed) == 24
    assert await drained(engines[0]) == ids[24:]


async def test_a_claim_and_a_change_need_the_same_segment_at_once() -> None:
    queue = ColdQueue(MOSTLY_COLD)
    ids = await queue.fill()
    engines = [queue.engine(MOSTLY_COLD) for _ in range(3)]
    cancelled, claimed, again = await asyncio.gather(
        engines[0].apply([cancel(task_id) for task_id in ids[3:9]]),
        claim(engines[1], limit=4),
        engines[2].add([new(id=task_id) for task_id in ids[:6]]),
    )
    assert [added.new for added in again] == [False] * 6
    assert cancelled == [True] * 6 and len(claimed) == 4  # some of them may run when they are cancelled
    assert {*await drained(queue.engine(MOSTLY_COLD))} == {*ids} - {*ids[3:9]} - {task.id for task in claimed}
    await check_bucket(queue.bucket)


async def test_a_slow_reader_finds_a_task_although_its_segment_was_deleted() -> None:
    """Its clocks stand still meanwhile, as those of a machine that is frozen."""
    queue = ColdQueue()
    ids = await queue.fill()
    wanted, way = ids[20], HeldBucket(queue.bucket)
    slow = queue.engine(OPTIONS, way)
    getting, listing = asyncio.create_task(slow.get([wanted])), asyncio.create_task(slow.find(Filter(), limit=DEPTH))
    reading = asyncio.create_task(slow.history(wanted))
    await way.is_read.wait()
    before = {*await queue.objects()}
    await queue.finish(ids)
    for _ in range(10):
        await queue.process.add([queue.task() for _ in range(2)])
        queue.clock.advance(60.0)
        await queue.process.repair()
        await queue.process.repair()
    await queue.engine(OPTIONS).repair()
    assert not before & {*await queue.objects()}
    way.may_go_on.set()
    (task,), events, page = await getting, await reading, await listing
    assert task is not None and task.status is Status.COMPLETED
    assert [event.status for event in events] == [Status.PENDING, Status.RUNNING, Status.COMPLETED]
    assert len(page) == DEPTH and len({task.id for task in page}) == DEPTH


Call = Callable[[ReplicatedLogEngine, list[str]], Awaitable[object]]


async def _claim(engine: ReplicatedLogEngine, _: list[str]) -> None:
    await claim(engine, limit=12)


async def _cancel(engine: ReplicatedLogEngine, ids: list[str]) -> None:
    await engine.apply([cancel(ids[10]), cancel(ids[-10])])


async def _repair(engine: ReplicatedLogEngine, _: list[str]) -> None:
    await engine.repair()


@pytest.mark.parametrize("call", [_claim, _cancel, _repair])
async def test_a_process_that_uses_segments_may_die_after_each_of_its_writes(call: Call) -> None:
    """Nothing is lost: the others find each task once, in the tables or in a segment."""
    queue = ColdQueue()
    store = queue.bucket = RecordingBucket(queue.clock)
    queue.process = queue.engine(OPTIONS)
    ids = await queue.fill()
    await queue.process.add([queue.task(type="later") for _ in range(2 * OPTIONS.segment_size)])
    await queue.process.close()
    objects, number = store.objects(), len(store.changes)
    other = queue.engine(OPTIONS)
    await call(other, ids)
    await other.close()
    assert len(store.changes) > number
    for at, change in enumerate(store.changes[number:]):
        objects = {key: data for key, data in objects.items() if key != change.key}
        objects |= {change.key: change.data} if change.data is not None else {}
        violations = check_log(objects)
        assert not violations, violations[:3]
        if at % _SUCCESSOR_INTERVAL == 0:
            assert await _tasks_in(objects, queue) == DEPTH + 2 * OPTIONS.segment_size


async def _tasks_in(objects: Mapping[str, bytes], queue: ColdQueue) -> int:
    bucket = MemoryBucket(queue.clock)
    for key, data in objects.items():
        await bucket.put(key, data, expected=ANY)
    engine = queue.engine(OPTIONS, bucket)
    found = await engine.find(Filter(), limit=1000)
    assert len(found) == len({task.id for task in found}) == sum((await engine.count()).values())
    return len(found)


async def _blobs(bucket: Bucket) -> AsyncIterator[tuple[str, Blob]]:
    for key in [key async for key in bucket.keys("")]:
        blob = await bucket.get(key)
        assert blob is not None
        yield key, blob


# --- damage


async def damage(queue: ColdQueue, task_id: str) -> str:
    """Change one bit of the segment that contains a task. Returns its key."""
    for key in await queue.objects():
        store = MemoryBucket(queue.clock)
        async for other, blob in _blobs(queue.bucket):
            if other != key:
                await store.put(other, blob.data, expected=ANY)
        try:
            await queue.engine(OPTIONS, store).get([task_id])
        except Refused:
            await flip(queue, key)
            return key
    raise AssertionError(f"{task_id} is in no segment")


async def flip(queue: ColdQueue, key: str) -> None:
    """Change one bit of an object, or restore it."""
    blob = await queue.bucket.get(key)
    assert blob is not None
    await queue.bucket.put(key, blob.data[:-1] + bytes([blob.data[-1] ^ 1]), expected=ANY)


async def test_a_damaged_segment_is_named_and_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    queue = ColdQueue()
    ids = await queue.fill()
    wanted = ids[20]
    damaged = await damage(queue, wanted)
    reader = queue.engine(OPTIONS)
    for call in (reader.get([wanted]), reader.history(wanted), reader.apply([cancel(wanted)]), reader.delete([wanted])):
        with pytest.raises(Refused, match=damaged):
            await call
    with pytest.raises(Refused, match=damaged):
        await reader.add([new(id=wanted)])
    assert None not in await reader.get([ids[0], ids[-1]])
    shown = [task.id for task in await reader.find(Filter(), limit=DEPTH)]
    assert wanted not in shown and len(shown) == DEPTH - OPTIONS.segment_size
    assert f"its tasks are not shown: {damaged}" in caplog.text
    assert sum((await reader.count()).values()) == DEPTH  # what is stored, not what can be read
    (finding,) = [finding for finding in await examine_log(queue.bucket) if not finding.ok]
    assert damaged in finding.detail and "restore" in finding.detail
    assert len(await drained(reader)) == DEPTH - OPTIONS.segment_size


def test_a_worker_that_never_repairs_claims_from_a_restored_segment() -> None:
    run(_restore_while_a_worker_waits())


async def _restore_while_a_worker_waits() -> None:
    queue = ColdQueue()
    ids = await queue.fill()
    damaged = await damage(queue, ids[20])
    worker = queue.engine(OPTIONS)
    assert len(await drained(worker)) == DEPTH - OPTIONS.segment_size
    await flip(queue, damaged)
    assert await claim(worker) == []  # a damaged object is not read with each claim
    began = asyncio.get_running_loop().time()
    await worker.wait(claim_request(), 3600.0)
    assert asyncio.get_running_loop().time() - began < 120.0
    assert len(await drained(worker)) == OPTIONS.segment_size


async def test_a_submission_that_repeats_a_task_of_a_damaged_segment_waits_for_its_repair(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its other tasks were acknowledged, so it must not be set aside. Submissions of others do not wait for it."""
    queue = ColdQueue()
    ids = await queue.fill()
    producer, other = queue.engine(INBOX), queue.engine(INBOX)
    key = await damage(queue, ids[20])
    with_repeat = queue.task()
    await producer.add([new(id=ids[20]), with_repeat])
    alone = queue.task()
    await other.add([alone])
    elapsed = queue.clock
    worker = ReplicatedLogEngine(queue.bucket, OPTIONS, clock=queue.clock, elapsed=elapsed, wall=elapsed)
    for _ in range(3):
        await worker.repair()
    assert [task is not None for task in await worker.get([with_repeat.id, alone.id])] == [False, True]
    assert len(await queue.waiting()) == 1 and f"waits: {key}" in caplog.text
    await flip(queue, key)
    queue.clock.advance(61.0)
    for _ in range(2):
        await worker.repair()
    assert None not in await worker.get([with_repeat.id, alone.id])
    assert sum((await worker.count()).values()) == DEPTH + 2
    assert not await queue.waiting()


async def append(queue: ColdQueue, statement: str) -> None:
    """Add a record of a statement that no call of the engine runs."""
    meta = await read_meta(queue.bucket)
    assert meta is not None
    records = RecordStore(queue.bucket, meta.id, 0)
    replica = await load_replica(queue.bucket, meta.id, 0, runner=run_inline, first_schema=meta.first_schema)
    while (record := await records.get(replica.position.seq + 1)) is not None:
        replica.apply(record)
    _, record = write(replica, lambda table: table.db.execute(statement).fetchall())
    await records.append(record)
    replica.close()


async def test_doctor_compares_the_counts_with_the_tasks_of_tables_and_segments() -> None:
    queue = ColdQueue()
    await queue.fill()
    names = [finding.name for finding in await examine_log(queue.bucket) if finding.ok]
    assert {"counts", "cold segments"} <= {*names}
    await queue.process.close()
    await append(queue, "UPDATE tally SET count = count + 1")
    (finding,) = [finding for finding in await examine_log(queue.bucket) if not finding.ok]
    assert (finding.name, finding.detail[:13]) == ("counts", "1 wrong count")


async def test_retention_deletes_the_history_of_segments() -> None:
    options = replace(OPTIONS, hot_tasks=DEPTH)
    queue = ColdQueue(options)
    ids = await queue.fill()
    await queue.finish(ids)
    await queue.cool_down()
    assert len(await queue.objects()) == DEPTH // OPTIONS.segment_size
    engine = queue.engine(options)
    tidied = await Retention(finished=60.0).tidy(engine, page_size=7)
    assert (tidied.archived, tidied.deleted) == (DEPTH, DEPTH)
    assert not any((await engine.count()).values())
    assert await engine.get(ids) == [None] * DEPTH
    await check_bucket(queue.bucket)
