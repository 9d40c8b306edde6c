"""A process may die after any request. Whatever it was doing, the next one finds every task, without the sweeper."""

from collections.abc import Awaitable, Callable

import pytest

from qo.buckets.memory import MemoryBucket
from qo.engines.per_task import PerTaskEngine
from qo.model import Filter, Status, Task, after_error, cancel, complete, expire, release, renew, replay
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id, want
from tests.engines.bucket_troubles import DyingBucket, Killed
from tests.engines.fast_time import run

Step = Callable[[PerTaskEngine, Task], Awaitable[object]]

STEPS: dict[str, Step] = {
    "claim": lambda engine, _: engine.claim(want()),
    "complete": lambda engine, task: engine.apply([complete(task)]),
    "retry": lambda engine, task: engine.apply([after_error(task, "e", luck=0.5)]),
    "release": lambda engine, task: engine.apply([release(task)]),
    "renew": lambda engine, task: engine.apply([renew(task, 30)]),
    "expire": lambda engine, task: engine.apply([expire(task, luck=0.5, grace=0)]),
    "cancel": lambda engine, task: engine.apply([cancel(task.id)]),
}
MOST_REQUESTS = 12


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("warm", [True, False], ids=["by its holder", "by another"])
def test_a_task_is_found_wherever_the_one_who_changes_it_dies(step: str, *, warm: bool) -> None:
    deaths = [run(_die(step, lives, warm=warm)) for lives in range(1, MOST_REQUESTS)]
    assert any(deaths) and not all(deaths)  # every request of the step was the last one once


async def _die(step: str, lives: int, *, warm: bool) -> bool:
    clock = ManualClock()
    store = MemoryBucket(clock)
    bucket = DyingBucket(store, lives=10_000)
    engine = PerTaskEngine(bucket, clock=clock)
    await engine.add([new()])
    task = await stored(engine) if step == "claim" else await claim_one(engine)
    clock.advance(31 if step == "expire" else 1)
    await engine.close()
    if not warm:
        engine = PerTaskEngine(bucket, clock=clock)
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
    other = PerTaskEngine(store, clock=clock)
    for _ in range(4):
        clock.advance(120)  # leases run out, back-offs end
        lost = await other.find(Filter(expired_for=0), limit=9)
        await other.apply([expire(task, luck=0.5, grace=0) for task in lost])
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
        engine = PerTaskEngine(DyingBucket(store, lives), clock=clock)
        died = await _dies(engine.add([new()]))
        clock.advance(1)
        other = PerTaskEngine(store, clock=clock)
        ((_, added),) = await other.add([new()])
        assert [task.id for task in await claim(other)] == [task_id(0)]
        assert await claim(other) == []
        await other.close()
        return died or not added

    assert all(run(submit(lives)) for lives in range(1, 4))


def test_a_replay_that_died_half_way_can_be_repeated() -> None:
    async def again(lives: int) -> None:
        clock = ManualClock()
        store = MemoryBucket(clock)
        engine = PerTaskEngine(store, clock=clock)
        await engine.add([new()])
        await engine.apply([cancel(task_id(0))])
        await engine.close()
        clock.advance(1)
        await _dies(PerTaskEngine(DyingBucket(store, lives), clock=clock).apply([replay(task_id(0))]))
        clock.advance(1)
        other = PerTaskEngine(store, clock=clock)
        await other.apply([replay(task_id(0))])
        assert len(await claim(other)) == 1
        await other.close()

    for lives in range(1, 6):
        run(again(lives))
