"""Cold segments in a store that refuses some objects, or whose objects do not fit to the tables."""

import os

import pytest
from msgspec.structs import replace

from qo.bucket import ANY, Bucket
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.replicated_log.frame import decode_frame, encode_frame
from qo.errors import ObjectTooLarge, Refused, StorageError
from qo.model import Filter, cancel, complete, set_priority
from qo.testing import ManualClock
from qo.testing.samples import claim
from tests.engines.cold_queue import DEPTH, OPTIONS, ColdQueue
from tests.engines.log_checker import check_bucket
from tests.engines.small_objects import LIMIT, limited

LARGE = LIMIT // 4  # bytes of a payload: five of them, a segment, are too large


class NoSegments(MemoryBucket):
    """A store in which this process has no right to write segments."""

    is_refusing = True

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.is_refusing and "/cold/" in key:
            raise Refused(f"{key}: access denied")
        return await super().put(key, data, expected=expected)


class SmallSegments(MemoryBucket):
    """A store that refuses large segments and records. Images have many parts in practice."""

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if len(data) > LIMIT and ("/cold/" in key or "/records/" in key):
            raise ObjectTooLarge(f"{key} is too large")
        return await super().put(key, data, expected=expected)


def queue_in(bucket: type[MemoryBucket]) -> ColdQueue:
    queue = ColdQueue()
    queue.bucket = bucket(queue.clock)
    queue.process = queue.engine(OPTIONS)
    return queue


async def claimed(queue: ColdQueue, bucket: Bucket, limit: int) -> list[str]:
    """Claim all tasks by this way to the store. Returns their ids in order."""
    process, ids = queue.engine(OPTIONS, bucket), list[str]()
    while some := await claim(process, limit=limit):
        ids += [task.id for task in some]
        await process.apply([complete(task) for task in some])
    return ids


async def fill_with_large_tasks(queue: ColdQueue) -> list[str]:
    ids = []
    for _ in range(DEPTH):
        queue.clock.advance(1)
        task = queue.task(payload=os.urandom(LARGE))
        ids.append(task.id)
        await queue.process.add([task])
    await queue.process.repair()
    return ids


async def test_a_log_is_compacted_although_segments_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    queue = queue_in(NoSegments)
    await queue.fill()
    await queue.process.close()
    process = queue.engine(OPTIONS)
    for _ in range(8):
        await process.add([queue.task()])
    queue.clock.advance(200.0)
    await process.repair()
    keys = [key async for key in queue.bucket.keys("log/")]
    assert any("/images/" in key for key in keys) and not any("/cold/" in key for key in keys)
    assert "access denied" in caplog.text


async def test_segments_become_smaller_if_the_store_refuses_them() -> None:
    queue = queue_in(SmallSegments)
    ids = await fill_with_large_tasks(queue)
    for _ in range(3):
        await queue.process.repair()
    assert await queue.objects()
    assert await claimed(queue, queue.bucket, 3) == ids


@pytest.mark.parametrize("limit", [1, 3])
async def test_tasks_of_a_segment_that_is_too_large_for_a_record_are_claimed(limit: int) -> None:
    queue = ColdQueue()
    ids = await fill_with_large_tasks(queue)
    assert len(await queue.objects()) == 7
    assert await claimed(queue, limited(queue.bucket), limit) == ids
    await check_bucket(queue.bucket)


async def test_a_task_of_a_segment_that_is_too_large_for_a_record_can_be_changed() -> None:
    queue = ColdQueue()
    ids = await fill_with_large_tasks(queue)
    process = queue.engine(OPTIONS, limited(queue.bucket))
    assert await process.apply([cancel(ids[-3]), set_priority(ids[12], 1)]) == [True, True]
    assert [task.id for task in await claim(process, limit=1)] == [ids[12]]
    assert sum((await process.count()).values()) == DEPTH
    await check_bucket(queue.bucket)


async def forge(queue: ColdQueue) -> str:
    """Give the first segment the tasks of another one, which are in the tables. Returns its key."""
    ids = [task.id for task in await queue.process.find(Filter(), limit=DEPTH)]
    assert await queue.process.apply([cancel(ids[3])]) == [True]

    bodies = {}
    for key in await queue.objects():
        blob = await queue.bucket.get(key)
        assert blob is not None
        bodies[key] = decode_frame(key, blob.data)
    forged = next(key for key in bodies if ids[-8].encode() in bodies[key][1])
    body = next(body for _, body in bodies.values() if ids[3].encode() in body)
    await queue.bucket.put(forged, encode_frame(bodies[forged][0], body), expected=ANY)
    return forged


async def test_claims_pass_over_a_segment_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    queue = ColdQueue()
    await queue.fill()
    forged = await forge(queue)
    assert len(await claim(queue.process, limit=DEPTH)) == DEPTH - 6
    assert forged in caplog.text


async def test_a_change_in_a_segment_that_does_not_fit_names_the_object() -> None:
    queue = ColdQueue()
    ids = await queue.fill()
    forged = await forge(queue)
    with pytest.raises(StorageError, match=forged):
        await queue.process.apply([cancel(ids[7])])


async def test_a_lane_is_moved_while_claims_need_its_segments() -> None:
    queue = ColdQueue(replace(OPTIONS, thaw_time=3600.0))
    ids = await queue.fill()
    assert len(await claim(queue.process, limit=10)) == 10
    before = set(await queue.objects())
    await queue.fill()
    assert len(set(await queue.objects()) - before) > DEPTH // 10
    assert await queue.process.apply([cancel(ids[-8])]) == [True]
    before = set(await queue.objects())
    await queue.fill()
    assert set(await queue.objects()) == before


async def test_history_is_moved_until_none_is_left() -> None:
    queue = ColdQueue(replace(OPTIONS, segment_size=1, hot_tasks=2 * DEPTH))
    await queue.finish(await queue.fill())
    await queue.cool_down()
    assert len(await queue.objects()) == 32
    await queue.process.repair()
    assert len(await queue.objects()) == DEPTH


async def test_history_is_moved_after_a_repair_that_could_move_nothing() -> None:
    queue = queue_in(NoSegments)
    await queue.finish(await queue.fill())
    await queue.cool_down()
    assert await queue.objects() == []
    assert isinstance(queue.bucket, NoSegments)
    queue.bucket.is_refusing = False
    await queue.process.repair()
    assert len(await queue.objects()) == DEPTH // OPTIONS.segment_size


async def test_a_collector_whose_clocks_stood_still_deletes_no_segment() -> None:
    queue = ColdQueue()
    await queue.process.add([queue.task()])
    stopped = ManualClock()
    sleeper = ReplicatedLogEngine(queue.bucket, OPTIONS, clock=queue.clock, elapsed=stopped, wall=stopped)
    assert len(await sleeper.find(Filter(), limit=2)) == 1
    ids = await queue.fill()
    for _ in range(10):
        for _ in range(8):
            await queue.process.write_note("now", b"%f" % queue.clock(), expected=ANY)
            queue.clock.advance(20.0)
        await queue.process.repair()
    before = await queue.objects()
    assert len(before) >= 6
    await sleeper.repair()
    assert await queue.objects() == before
    assert len(await claimed(queue, queue.bucket, DEPTH)) == len(ids) + 1
