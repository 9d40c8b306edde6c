"""Repair rebuilds the index from the tasks, and does not touch foreign objects."""

import asyncio
import random

import pytest

from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.engines.object_per_task import IndexMode, ObjectPerTaskEngine, TasksOptions, counts
from qo.model import Filter, Status, cancel, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run

HOUR = 3600.0


async def _keys(bucket: MemoryBucket, prefix: str = "") -> list[str]:
    return [key async for key in bucket.keys(prefix)]


@pytest.mark.parametrize("seed", range(10))
async def test_a_tenth_of_the_index_may_go_missing(seed: int) -> None:
    clock, dice = ManualClock(), random.Random(seed)
    bucket = MemoryBucket(clock)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.add([new(n, delay=dice.choice([0.0, 0.0, 50.0])) for n in range(200)])
    await claim(engine, limit=60, lease=20.0)
    await engine.close()
    entries = await _keys(bucket, "ready/") + await _keys(bucket, "leases/")
    for key in dice.sample(entries, len(entries) // 10):
        await bucket.delete(key)
    monitor = ObjectPerTaskEngine(bucket, clock=clock)
    assert await monitor.repair() == len(entries) // 10
    await monitor.repair()
    clock.advance(60)
    other = ObjectPerTaskEngine(bucket, clock=clock)
    running = await other.find(Filter(expired_for=0), limit=999)
    waiting = await claim(other, limit=999)
    assert len({task.id for task in [*running, *waiting]}) == 200
    await other.close()


async def test_repair_removes_what_is_stale_and_leaves_what_is_young() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.add([new(0), new(1)])
    orphan, stale = await _keys(bucket, "ready/")
    await engine.apply([complete(await claim_one(engine))])
    await engine.close()
    await bucket.put(orphan, b"{}", expected=ANY)  # a clean-up that did not happen
    await bucket.delete("tasks/0/" + task_id(1) + ".json")  # a submission in progress: its index entry is written first
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.repair()
    await engine.close()
    assert stale in await _keys(bucket, "ready/")
    clock.advance(HOUR)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.repair()
    await engine.close()
    assert stale not in await _keys(bucket, "ready/")


async def test_a_deleted_task_leaves_a_tombstone_for_an_hour_and_its_id_can_be_used_again() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.add([new(0), new(1)])
    await engine.apply([cancel(task_id(0)), cancel(task_id(1))])
    assert await engine.delete([task_id(0), task_id(1)]) == [True, True]
    await engine.repair()
    assert len(await _keys(bucket, "tasks/")) == 2
    clock.advance(1)
    assert await engine.add([new(1)]) == [(task_id(1), True)]
    assert [event.status for event in await engine.history(task_id(1))] == [Status.PENDING]
    clock.advance(HOUR)
    assert await ObjectPerTaskEngine(bucket, clock=clock).repair() == 1
    assert await _keys(bucket, "tasks/") == [f"tasks/0/{task_id(1)}.json"]
    assert (await stored(engine, 1)).version == 1
    assert await engine.add([new(0)]) == [(task_id(0), True)]
    await engine.close()


@pytest.mark.parametrize("junk", [b"", b"{}", b"\xff\xfe", b'{"task":{"id":"x"}}', b"[]"])
async def test_an_unreadable_object_is_left_alone(junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.add([new(0), new(1)])
    foreign = ["tasks/readme.txt", "ready/x", "leases/0/1/2", "ready/later/junk", f"tasks/5/{task_id(0)}.json"]
    damaged = f"tasks/0/{task_id(0)}.json"
    for key in [*foreign, damaged]:
        await bucket.put(key, junk, expected=ANY)
    for _ in range(2):
        assert await engine.get([task_id(0)]) == [None]
        assert [task.id for task in await engine.find(Filter(), limit=9)] == [task_id(1)]
        await engine.repair()
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert await engine.apply([cancel(task_id(0))]) == [False]
    assert await engine.add([new(0)]) == [(task_id(0), False)]
    await engine.count()
    assert {*foreign, damaged} <= set(await _keys(bucket)) and damaged in engine.quarantined
    assert len([line for line in caplog.messages if damaged in line]) == 1
    assert await engine.delete([task_id(0)]) == [True]  # only an explicit deletion removes it
    await engine.close()
    assert damaged not in await _keys(bucket) and set(foreign) <= set(await _keys(bucket))


async def test_a_hybrid_engine_finds_tasks_without_index_entries() -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    await ObjectPerTaskEngine(bucket, clock=clock).add([new(0)])
    for key in await _keys(bucket, "ready/"):
        await bucket.delete(key)
    assert await claim(ObjectPerTaskEngine(bucket, TasksOptions(index_mode=IndexMode.INDEX_ONLY), clock=clock)) == []
    assert (
        await claim(ObjectPerTaskEngine(bucket, TasksOptions(), clock=clock)) == []
    )  # not yet, because a scan is expensive
    assert len(await claim(ObjectPerTaskEngine(bucket, TasksOptions(scan_interval=0.0), clock=clock))) == 1


@pytest.mark.parametrize("after", [0.0, 0.02, 0.04, 0.06, 0.09, 0.105])
def test_a_cancelled_claim_keeps_nothing(after: float) -> None:
    async def cancelled() -> None:
        bucket = MemoryBucket()
        engine = ObjectPerTaskEngine(SlowBucket(bucket))
        await engine.add([new(0), new(1)])
        claiming = asyncio.create_task(claim(engine))
        await pass_time(after)
        assert claiming.cancel()
        await asyncio.wait([claiming])
        await engine.close()
        for name in (0, 1):
            task = await stored(ObjectPerTaskEngine(bucket), name)
            assert (task.status, task.failures) == (Status.PENDING, 0)

    run(cancelled())


async def test_a_flipped_bit_in_shared_counts_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "_SHARED_COUNT_SIZE", 3)
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    first = ObjectPerTaskEngine(bucket, clock=clock)
    await first.add([new(n) for n in range(3)])
    await first.apply([complete(task) for task in await claim(first)])
    assert sum((await ObjectPerTaskEngine(bucket, clock=clock).count()).values()) == 3
    shared = await bucket.get(counts.ROLLUP)
    assert shared is not None
    assert sum((await ObjectPerTaskEngine(bucket, clock=clock).count()).values()) == 3, "what was shared is used"
    await bucket.put(counts.ROLLUP, shared.data.replace(b",3]", b",7]"), expected=ANY)
    assert sum((await ObjectPerTaskEngine(bucket, clock=clock).count()).values()) == 3
