"""The whole queue in one object or one log: many writers, and many calls in one write."""

import asyncio
from collections import Counter

import pytest

from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engine import Engine
from qo.errors import BadBatch, Conflict, InvalidSetting, OutcomeUnknown
from qo.model import Filter, Status, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, stored, task_id
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run
from tests.engines.layouts import VARIANTS, Layout

ONE = {name: VARIANTS[name] for name in ("one", "one directly", "sqlite", "log")}
GROUPING = ("one", "sqlite", "log")


@pytest.fixture(params=ONE)
def layout(request: pytest.FixtureRequest) -> Layout:
    return ONE[request.param]


grouping = pytest.mark.parametrize("layout", GROUPING, indirect=True)


@pytest.mark.parametrize("seed", range(5))
def test_many_writers_of_a_new_object_lose_no_task(layout: Layout, seed: int) -> None:
    async def race() -> None:
        clock = ManualClock()
        bucket = SlowBucket(MemoryBucket(clock), writing=0.028 + seed / 1000)
        engines = [layout(bucket, clock) for _ in range(8)]

        async def submit(number: int, engine: Engine) -> None:
            for n in range(4):
                name = 100 * number + n
                assert await engine.add([new(name)]) == [(task_id(name), True)]

        await asyncio.gather(*(submit(number, engine) for number, engine in enumerate(engines)))
        everything = {task_id(100 * number + n) for number in range(8) for n in range(4)}
        assert {task.id for task in await layout(bucket, clock).find(Filter(), limit=99)} == everything
        got = await asyncio.gather(*(claim(engine, limit=5) for engine in engines))
        assert Counter(task.id for tasks in got for task in tasks) == Counter(everything)

    run(race())


@grouping
def test_concurrent_calls_share_a_write_and_a_single_writer_does_not_read(layout: Layout) -> None:
    """In simulated time: a writer polls for contenders after a while, and a slow machine takes that long."""

    async def settle_all() -> None:
        clock = ManualClock()
        bucket = CountingBucket(MemoryBucket(clock))
        engine = layout(bucket, clock)
        await asyncio.gather(*(engine.add([new(n)]) for n in range(50)))
        created = 2 if layout is ONE["log"] else 0  # the checkpoint and the name of a new log
        assert bucket.requests == {"get": 1, "put": created + 1}
        tasks = await claim(engine, limit=50)
        await asyncio.gather(*(engine.apply([complete(task)]) for task in tasks))
        assert bucket.requests == {"get": 1, "put": created + 3}

    run(settle_all())


async def test_an_empty_poll_writes_nothing(layout: Layout) -> None:
    clock = ManualClock()
    bucket = CountingBucket(MemoryBucket(clock))
    engine = layout(bucket, clock)
    for _ in range(3):
        assert await claim(engine) == []
    await engine.wait(claim_request(), 0.01)
    assert "put" not in bucket.requests


async def test_one_bad_call_fails_alone(layout: Layout) -> None:
    clock = ManualClock()
    engine = layout(MemoryBucket(clock), clock)
    answers = await asyncio.gather(
        engine.add([new(0)]),
        engine.write_note("a", b"", expected="wrong"),
        engine.find(Filter(), limit=1, after="nonsense"),
        engine.add([new("x", payload=object())]),
        engine.add([new(1), new(1)]),
        engine.add([new(2)]),
        return_exceptions=True,
    )
    assert not isinstance(answers[0], BaseException) and not isinstance(answers[5], BaseException)
    for answer, kind in zip(answers[1:5], (Conflict, InvalidSetting, TypeError | ValueError, BadBatch), strict=True):
        assert isinstance(answer, kind)
    assert len(await claim(engine)) == 2
    assert await engine.get([task_id("x")]) == [None]


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.02, 0.0279])
def test_a_cancelled_claim_keeps_nothing(layout: Layout, delay: float) -> None:
    async def cancelled() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        engine = layout(SlowBucket(bucket), clock)
        await engine.add([new()])
        claiming = asyncio.create_task(claim(engine))
        await pass_time(delay)
        assert claiming.cancel()
        await engine.close()
        task = await stored(layout(bucket, clock))
        assert (task.status, task.failures) == (Status.PENDING, 0)

    run(cancelled())


async def test_each_engine_sees_what_others_write(layout: Layout) -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    one, other = layout(bucket, clock), layout(bucket, clock)
    for n in range(5):
        await one.add([new(n)])
        (task,) = await claim(other)
        assert task.id == task_id(n)
        assert await one.apply([complete(task)]) == [True]
        assert (await stored(other, n)).status is Status.COMPLETED


class BrokenDriver(MemoryBucket):
    """Once, a write reaches the store, and then the driver fails with an error of its own."""

    is_broken = False

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        if self.is_broken:
            self.is_broken = False
            raise RuntimeError("the driver failed")
        return version


async def test_an_unexplained_error_of_a_write_leaves_the_outcome_open(layout: Layout) -> None:
    clock = ManualClock()
    bucket = BrokenDriver(clock)
    engine = layout(bucket, clock)
    await engine.add([new(1)])
    bucket.is_broken = True
    with pytest.raises(OutcomeUnknown, match="may have been written"):
        await engine.add([new(2)])
    assert await engine.add([new(3)]) == [(task_id(3), True)]
    assert {task.id for task in await engine.find(Filter(), limit=9)} == {task_id(1), task_id(2), task_id(3)}
