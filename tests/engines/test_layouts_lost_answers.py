"""Responses of the store may be lost. The answers of the engine are right all the same."""

import asyncio
import os

import pytest

from qo.buckets.memory import MemoryBucket
from qo.errors import StorageError
from qo.model import Filter, Status, complete, expire
from qo.testing import ManualClock, random_history
from qo.testing.faults import Faults, FaultyBucket
from qo.testing.samples import claim, new, task_id
from tests.engines.fast_time import run
from tests.engines.layouts import LAYOUTS, VARIANTS, Layout

TORTURE = int(os.environ.get("QO_TORTURE", "0"))
HISTORIES = int(os.environ.get("QO_HISTORIES") or 10 * TORTURE or 4)  # of each kind: 1,000 take minutes
# test_log_simulation.py loses responses of a log of several shards.
EVERY = [name for name in VARIANTS if "QO_TORTURE" in os.environ or name != "log in four shards"]
_BLOCK = 10
_BLOCKS = range(0, HISTORIES, _BLOCK)
THIRD = 1 / 3


@pytest.mark.parametrize("layout", EVERY)
@pytest.mark.parametrize("first", _BLOCKS)
def test_every_answer_is_right_while_every_third_response_is_lost(first: int, layout: str) -> None:
    for seed in range(first, min(first + _BLOCK, HISTORIES)):
        run(_history(seed, VARIANTS[layout], Faults(seed, lost_response=THIRD)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", _BLOCKS)
def test_every_answer_is_right_while_requests_are_lost_or_late(first: int, layout: str) -> None:
    for seed in range(first, min(first + _BLOCK, HISTORIES)):
        faults = Faults(seed, lost_request=0.1, lost_response=0.1, late=0.05, refused=0.1, slow=0.1)
        run(_history(seed, LAYOUTS[layout], faults))


async def _history(seed: int, layout: Layout, faults: Faults) -> None:
    clock = ManualClock()
    store = MemoryBucket(clock)
    bucket = FaultyBucket(store, faults)
    engine = layout(bucket, clock)
    try:
        await random_history(engine, clock, seed, steps=40)
        told = await engine.find(Filter(), limit=99)
        await engine.close()
        await bucket.settle()
        fresh = layout(store, clock)
        assert await fresh.find(Filter(), limit=99) == told
        await fresh.close()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(min(20, 8 * TORTURE) or 4))
def test_racing_processes_lose_nothing_and_finish_nothing_twice(seed: int, layout: str) -> None:
    run(_race(seed, LAYOUTS[layout]))


async def _race(seed: int, layout: Layout) -> None:
    clock = ManualClock()
    store = MemoryBucket(clock)
    faults = [Faults(4 * seed + n, lost_request=0.05, lost_response=0.2, late=0.05, refused=0.05) for n in range(4)]
    buckets = [FaultyBucket(store, each) for each in faults]
    told: list[str] = []
    finished: list[str] = []

    async def process(number: int) -> None:
        engine = layout(buckets[number], clock)
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
    await _finish(layout, store, clock, set(told), finished)


async def _finish(layout: Layout, store: MemoryBucket, clock: ManualClock, told: set[str], finished: list[str]) -> None:
    """Finish the remaining tasks. Then every acknowledged task is finished once, as the engine reported it."""
    engine = layout(store, clock)
    clock.advance(60)
    lost = await engine.find(Filter(expired_for=0), limit=999)
    await engine.apply([expire(task, random=0.5, grace=0) for task in lost])
    clock.advance(60)
    for task in await claim(engine, limit=999):
        finished.extend([task.id] if await engine.apply([complete(task)]) == [True] else [])
    assert len(finished) == len(set(finished))
    for each in sorted(told | {task_id(100)}):
        ends = [event for event in await engine.history(each) if event.status is Status.COMPLETED]
        assert (each, len(ends)) == (each, 1)
    await engine.close()
