"""The store may keep its answers to itself: what the engine says is the truth all the same."""

import asyncio

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.per_task import Options, PerTaskEngine
from qo.errors import StorageError
from qo.model import Filter, Status, complete, expire
from qo.testing import ManualClock, random_history
from qo.testing.faults import Faults
from qo.testing.faulty_bucket import FaultyBucket
from qo.testing.samples import claim, new, task_id
from tests.engines.fast_time import run

THIRD = 1 / 3


@pytest.mark.parametrize("block", range(10))
def test_with_every_third_answer_lost_every_answer_is_right(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        run(_history(seed, Faults(seed, lost_response=THIRD)))


@pytest.mark.parametrize("block", range(5))
def test_requests_may_get_lost_or_come_late_too(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        run(_history(seed, Faults(seed, lost_request=0.1, lost_response=0.1, late=0.05, refused=0.1, slow=0.1)))


async def _history(seed: int, faults: Faults) -> None:
    clock = ManualClock()
    options = Options(ready_page_size=3 if seed % 3 == 0 else 1000)
    engine = PerTaskEngine(FaultyBucket(MemoryBucket(clock), faults), options, clock=clock)
    try:
        await random_history(engine, clock, seed, steps=40)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}") from error
    await engine.close()


@pytest.mark.parametrize("seed", range(20))
def test_racing_processes_lose_nothing_and_finish_nothing_twice(seed: int) -> None:
    run(_race(seed))


async def _race(seed: int) -> None:
    clock = ManualClock()
    store = MemoryBucket(clock)
    faults = [Faults(4 * seed + n, lost_request=0.05, lost_response=0.2, late=0.05, refused=0.05) for n in range(4)]
    buckets = [FaultyBucket(store, each) for each in faults]
    told: list[str] = []
    finished: list[str] = []

    async def process(number: int) -> None:
        engine = PerTaskEngine(buckets[number], clock=clock)
        for n in range(6):
            try:
                added = await engine.add([new(10 * number + n), new(100 + n)])  # the second is submitted by all
                told.extend(task_id for task_id, _ in added)
                for task in await claim(engine, limit=3, worker_id=f"w{number}"):
                    finished.extend([task.id] if await engine.apply([complete(task)]) == [True] else [])
            except StorageError:
                continue
        await engine.close()

    await asyncio.gather(*(process(number) for number in range(4)))
    for bucket in buckets:
        await bucket.settle()
    await _finish(store, clock, set(told), finished)


async def _finish(store: MemoryBucket, clock: ManualClock, told: set[str], finished: list[str]) -> None:
    """What was left is done; then everything that was acknowledged has one end, and every end that was told is true."""
    engine = PerTaskEngine(store, clock=clock)
    clock.advance(60)
    lost = await engine.find(Filter(expired_for=0), limit=999)
    await engine.apply([expire(task, luck=0.5, grace=0) for task in lost])
    clock.advance(60)
    for task in await claim(engine, limit=999):
        finished.extend([task.id] if await engine.apply([complete(task)]) == [True] else [])
    assert len(finished) == len(set(finished))
    for each in sorted(told | {task_id(100)}):
        ends = [event for event in await engine.history(each) if event.status is Status.COMPLETED]
        assert (each, len(ends)) == (each, 1)
    await engine.close()
