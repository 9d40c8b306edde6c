"""A process may die after any request. Whatever it was doing, the next one finds every task, without `repair`."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.bucket import Bucket
from qo.buckets.memory import MemoryBucket
from qo.engines.large_values import MIN_ORPHAN_AGE, LargeValuesEngine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.object_per_task.keys import task_key
from qo.model import Filter, Status, Task, after_error, cancel, complete, expire, release, renew, replay
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.engines.bucket_troubles import DyingBucket, Killed
from tests.engines.fast_time import run

Step = Callable[[ObjectPerTaskEngine, Task], Awaitable[object]]

STEPS: dict[str, Step] = {
    "claim": lambda engine, _: engine.claim(claim_request()),
    "complete": lambda engine, task: engine.apply([complete(task)]),
    "retry": lambda engine, task: engine.apply([after_error(task, "e", random=0.5)]),
    "release": lambda engine, task: engine.apply([release(task)]),
    "renew": lambda engine, task: engine.apply([renew(task, 30)]),
    "expire": lambda engine, task: engine.apply([expire(task, random=0.5, grace=0)]),
    "cancel": lambda engine, task: engine.apply([cancel(task.id)]),
}
MOST_REQUESTS = 12


class _StalledBucket(DyingBucket):
    """Writes to one key wait at a gate."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        super().__init__(bucket, lives=10_000)
        self._key = key
        self.gate, self.arrived = asyncio.Event(), asyncio.Event()

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if key == self._key:
            self.arrived.set()
            await self.gate.wait()
        return await super().put(key, data, expected=expected)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("warm", [True, False], ids=["by its holder", "by another"])
def test_a_task_is_found_wherever_the_process_that_changes_it_dies(step: str, *, warm: bool) -> None:
    deaths = [run(_die(step, lives, warm=warm)) for lives in range(1, MOST_REQUESTS)]
    assert any(deaths) and not all(deaths)  # each request of the step was once the last one


async def _die(step: str, lives: int, *, warm: bool) -> bool:
    clock = ManualClock()
    store = MemoryBucket(clock)
    bucket = DyingBucket(store, lives=10_000)
    engine = ObjectPerTaskEngine(bucket, clock=clock)
    await engine.add([new()])
    task = await stored(engine) if step == "claim" else await claim_one(engine)
    clock.advance(31 if step == "expire" else 1)
    await engine.close()
    if not warm:
        engine = ObjectPerTaskEngine(bucket, clock=clock)
    bucket.lives = lives
    died = await _dies(STEPS[step](engine, task)) or await _dies(engine.close())
    await _work_goes_on(store, clock)
    return died


async def _dies(work: Awaitable[object]) -> bool:
    try:
        await work
    except Killed:
        return True
    return False


async def _work_goes_on(store: MemoryBucket, clock: ManualClock) -> None:
    """Another process does what workers and monitors do, and the task ends."""
    other = ObjectPerTaskEngine(store, clock=clock)
    for _ in range(4):
        clock.advance(120)  # leases expire and back-offs end
        lost = await other.find(Filter(expired_for=0), limit=9)
        await other.apply([expire(task, random=0.5, grace=0) for task in lost])
        clock.advance(5)
        for task in await claim(other):
            assert await other.apply([complete(task)]) == [True]
    ended = await stored(other)
    assert ended.status in {Status.COMPLETED, Status.CANCELLED}
    assert {lane.status for lane in await other.count()} == {ended.status}
    await other.close()


def test_a_submission_that_died_half_way_can_be_repeated() -> None:
    async def submit(lives: int) -> bool:
        clock = ManualClock()
        store = MemoryBucket(clock)
        engine = ObjectPerTaskEngine(DyingBucket(store, lives), clock=clock)
        died = await _dies(engine.add([new()]))
        clock.advance(1)
        other = ObjectPerTaskEngine(store, clock=clock)
        ((_, added),) = await other.add([new()])
        assert [task.id for task in await claim(other)] == [task_id(0)]
        assert await claim(other) == []
        await other.close()
        return died or not added

    assert all(run(submit(lives)) for lives in range(1, 4))


@pytest.mark.parametrize("again", [1, 2], ids=["repeated", "by another"])
def test_a_submission_after_the_window_that_died_half_way_blocks_nothing(again: int) -> None:
    async def submit(lives: int) -> bool:
        clock = ManualClock()
        store = MemoryBucket(clock)
        other = _aside(store, store, clock)
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 10.0, "payload": b"x" * 100}
        await other.add([new(**keyed)])
        await other.apply([complete(await claim_one(other))])
        clock.advance(10)
        died = await _dies(_aside(DyingBucket(store, lives), store, clock).add([new(next_id=task_id(1), **keyed)]))
        clock.advance(1)
        ((last, _),) = await other.add([new(next_id=task_id(again), **keyed)])
        assert await other.add([new(next_id=task_id(3), **keyed)]) == [(last, False)]
        clock.advance(MIN_ORPHAN_AGE + 1)
        await other.repair()
        (task,) = await claim(other)
        assert (task.id, task.payload) == (last, keyed["payload"])
        assert (await stored(other)).status is Status.COMPLETED
        assert sum((await other.count()).values()) == 2
        await other.close()
        return died

    deaths = [run(submit(lives)) for lives in range(1, MOST_REQUESTS)]
    assert any(deaths) and not all(deaths)


def _aside(bucket: Bucket, blobs: Bucket, clock: ManualClock) -> LargeValuesEngine:
    return LargeValuesEngine(ObjectPerTaskEngine(bucket, clock=clock), blobs, inline=10, clock=clock)


def test_a_submission_that_was_considered_dead_adds_no_second_task() -> None:
    async def submit() -> None:
        clock = ManualClock()
        store = MemoryBucket(clock)
        other = ObjectPerTaskEngine(store, clock=clock)
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 10.0}
        await other.add([new(**keyed)])
        await other.apply([complete(await claim_one(other))])
        clock.advance(10)
        stalled = _StalledBucket(store, task_key(task_id(1)))
        slow = asyncio.create_task(ObjectPerTaskEngine(stalled, clock=clock).add([new(next_id=task_id(1), **keyed)]))
        await stalled.arrived.wait()
        assert await other.add([new(next_id=task_id(2), **keyed)]) == [(task_id(2), True)]
        stalled.gate.set()
        assert await slow == [(task_id(2), False)]
        assert [task.id for task in await claim(other)] == [task_id(2)]
        await other.close()

    run(submit())


def test_a_replay_that_died_half_way_can_be_repeated() -> None:
    async def again(lives: int) -> None:
        clock = ManualClock()
        store = MemoryBucket(clock)
        engine = ObjectPerTaskEngine(store, clock=clock)
        await engine.add([new()])
        await engine.apply([cancel(task_id(0))])
        await engine.close()
        clock.advance(1)
        await _dies(ObjectPerTaskEngine(DyingBucket(store, lives), clock=clock).apply([replay(task_id(0))]))
        clock.advance(1)
        other = ObjectPerTaskEngine(store, clock=clock)
        await other.apply([replay(task_id(0))])
        assert len(await claim(other)) == 1
        await other.close()

    for lives in range(1, 6):
        run(again(lives))
