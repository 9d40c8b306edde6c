"""Large payloads and results: stored beside the tasks, without producers and workers noticing."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from qo.buckets.memory import MemoryBucket
from qo.client import Client, Settings, connect
from qo.engine import Engine
from qo.engines.large_values import DEFAULT_PAYLOAD_LIMIT, MIN_ORPHAN_AGE, LargeValuesEngine
from qo.engines.large_values.blobs import MARK, reference
from qo.errors import InvalidTask, StorageError
from qo.model import PAYLOAD_LIMIT, Status, cancel, complete
from qo.testing import EngineContract, ManualClock
from qo.testing.faults import Faults, FaultyBucket
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.damage import DamagedLayouts, SpoilingBucket
from tests.engines.few_histories import FewHistories
from tests.engines.layouts import EVERYTHING_ASIDE, LAYOUTS

LARGE = b'"' + b"x" * PAYLOAD_LIMIT + b'"'


class TestEverythingAside(FewHistories, DamagedLayouts, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> AsyncIterator[Engine]:
        engine = EVERYTHING_ASIDE(MemoryBucket(clock), clock)
        yield engine
        await engine.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> MemoryBucket:
    return MemoryBucket(clock)


@pytest.fixture(params=list(LAYOUTS))
async def engine(
    bucket: MemoryBucket, clock: ManualClock, request: pytest.FixtureRequest
) -> AsyncIterator[LargeValuesEngine]:
    engine = LargeValuesEngine(LAYOUTS[request.param](bucket, clock), bucket, clock=clock)
    yield engine
    await engine.close()


async def aside(bucket: MemoryBucket) -> list[str]:
    return [key async for key in bucket.keys("data/")]


async def test_a_large_payload_and_a_large_result_are_stored_as_blobs(
    engine: LargeValuesEngine, bucket: MemoryBucket
) -> None:
    await engine.add([new(payload=LARGE), new(1, payload=b"small")])
    assert len(await aside(bucket)) == 1
    tasks = {task.id: task for task in await claim(engine)}
    assert tasks[task_id(0)].payload == LARGE
    assert await engine.apply([complete(task, LARGE + task.payload) for task in tasks.values()]) == [True, True]
    assert len(await aside(bucket)) == 3
    assert (await stored(engine)).result == LARGE + LARGE
    assert (await stored(engine, 1)).result == LARGE + b"small"
    below = await engine.engine.get([task_id(0)])
    assert below[0] is not None
    assert len(below[0].payload) < 200


async def test_a_deleted_task_leaves_no_blobs(engine: LargeValuesEngine, bucket: MemoryBucket) -> None:
    await engine.add([new(payload=LARGE)])
    await engine.apply([complete(await claim_one(engine), LARGE)])
    assert len(await aside(bucket)) == 2
    assert await engine.delete([task_id(0)]) == [True]
    assert await aside(bucket) == []


async def test_a_refused_submission_removes_its_own_payload_only(
    engine: LargeValuesEngine, bucket: MemoryBucket
) -> None:
    await engine.add([new(payload=LARGE)])
    before = await aside(bucket)
    assert [added.new for added in await engine.add([new(payload=LARGE)])] == [False]
    assert await aside(bucket) == before
    assert (await stored(engine)).payload == LARGE


async def test_the_payload_of_a_successor_stays_when_the_first_task_is_deleted(
    engine: LargeValuesEngine, bucket: MemoryBucket, clock: ManualClock
) -> None:
    keyed = [new(payload=LARGE, idempotency_key="k", window=10.0, next_id=task_id(n)) for n in range(1, 4)]
    assert await engine.add([keyed[0]]) == [(task_id(0), True)]
    for submission in keyed:
        await engine.apply([complete(task) for task in await claim(engine)])
        clock.advance(10)
        await engine.add([submission])
        before = await aside(bucket)
        assert await engine.add([replace(submission, next_id=task_id(9))]) == [(submission.next_id, False)]
        assert await aside(bucket) == before
    assert len(before) == 4, "no two tasks share a payload, though the first submission made two"
    clock.advance(MIN_ORPHAN_AGE + 1)
    assert await engine.repair() == 0
    assert await engine.delete([task_id(0), task_id(1)]) == [True, True]
    assert len(await aside(bucket)) == 2
    assert (await claim_one(engine)).payload == (await stored(engine, 2)).payload == LARGE


async def test_a_refused_result_is_removed(engine: LargeValuesEngine, bucket: MemoryBucket) -> None:
    await engine.add([new()])
    task = await claim_one(engine)
    await engine.apply([cancel(task.id)])
    assert await engine.apply([complete(task, LARGE)]) == [False]
    assert await aside(bucket) == []


async def test_repeating_a_completion_is_harmless(engine: LargeValuesEngine, bucket: MemoryBucket) -> None:
    await engine.add([new()])
    task = await claim_one(engine)
    for _ in range(2):
        assert await engine.apply([complete(task, LARGE)]) == [True]
    assert len(await aside(bucket)) == 1
    assert (await stored(engine)).result == LARGE


async def test_a_caller_cannot_forge_a_reference(engine: LargeValuesEngine, bucket: MemoryBucket) -> None:
    await engine.add([new(payload=LARGE)])
    (key,) = await aside(bucket)
    for n, payload in enumerate((reference(key, LARGE), MARK, MARK + b"=x"), start=1):
        await engine.add([new(n, payload=payload)])
        assert (await stored(engine, n)).payload == payload


async def test_a_missing_payload_fails_its_task_and_no_other(engine: LargeValuesEngine, bucket: MemoryBucket) -> None:
    await engine.add([new(payload=LARGE), new(1)])
    (key,) = await aside(bucket)
    await bucket.delete(key)
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    task = await stored(engine)
    assert (task.status, task.error) == (Status.FAILED, f"its payload is missing or damaged: {key}")
    assert task.payload == b'{"$missing":"%s"}' % key.encode()


async def test_repair_removes_old_blobs_that_a_crash_left(
    engine: LargeValuesEngine, bucket: MemoryBucket, clock: ManualClock
) -> None:
    await engine.add([new(payload=LARGE)])
    needed = await aside(bucket)
    for n in (0, 1):  # one of an existing task, one of a missing one
        await bucket.put(f"data/{task_id(n)[0]}/{task_id(n)}/payload_{n:032x}", b"left", expected="new")
    await bucket.put("data/readme.txt", b"somebody else's", expected="new")
    assert await engine.repair() == 0
    clock.advance(MIN_ORPHAN_AGE + 1)
    assert await engine.repair() == 2
    assert await aside(bucket) == sorted([*needed, "data/readme.txt"])


async def test_repair_keeps_the_values_of_a_damaged_task(
    engine: LargeValuesEngine, bucket: MemoryBucket, clock: ManualClock
) -> None:
    """The task may be restored and then needs them."""
    await engine.add([new(payload=LARGE), new(1, payload=LARGE)])
    needed = await aside(bucket)
    await DamagedLayouts().damage(engine, task_id(0))
    clock.advance(MIN_ORPHAN_AGE + 1)
    assert await engine.repair() == 0
    assert await aside(bucket) == needed


async def test_a_damaged_response_is_read_again(clock: ManualClock) -> None:
    bucket = SpoilingBucket(clock)
    engine = LargeValuesEngine(LAYOUTS["tasks"](bucket, clock), bucket, clock=clock)
    await engine.add([new(payload=LARGE)])
    bucket.spoiled_reads = 1
    assert (await claim_one(engine)).payload == LARGE
    assert bucket.spoiled_reads == 0
    await engine.close()


async def test_a_task_whose_payload_cannot_be_read_now_is_released(bucket: MemoryBucket, clock: ManualClock) -> None:
    faulty = FaultyBucket(bucket, Faults(0))
    engine = LargeValuesEngine(LAYOUTS["tasks"](bucket, clock), faulty, clock=clock)
    await engine.add([new(payload=LARGE)])
    faulty.faults = Faults(0, refused=1.0)
    assert await claim(engine) == []
    faulty.faults = Faults(0)
    assert (await claim_one(engine)).payload == LARGE
    await engine.close()


async def test_a_failed_cleanup_does_not_change_the_answer(bucket: MemoryBucket, clock: ManualClock) -> None:
    faulty = FaultyBucket(bucket, Faults(0))
    engine = LargeValuesEngine(LAYOUTS["tasks"](bucket, clock), faulty, clock=clock)
    await engine.add([new(payload=LARGE)])
    await engine.apply([cancel(task_id(0))])
    faulty.faults = Faults(0, refused=1.0)
    assert await engine.delete([task_id(0)]) == [True]
    with pytest.raises(StorageError):
        await engine.add([new(1, payload=LARGE)])  # the task is not written if its payload is not
    assert await engine.get([task_id(1)]) == [None]
    await engine.close()


async def test_a_client_accepts_payloads_up_to_the_limit_of_its_store(tmp_path: Path) -> None:
    async with connect(f"file://{tmp_path}?payload_limit=300000") as client:
        submitted = await client.enqueue("t", "x" * 290_000)
        (task,) = await client.dequeue("t")
        assert len(task.payload) == 290_002
        await client.ack(task, "y" * 290_000)
        assert len(await submitted.result()) == 290_000
        with pytest.raises(InvalidTask, match="300,003 bytes, the limit is 300,000"):
            await client.enqueue("t", "x" * 300_001)
    async with connect(f"file://{tmp_path}/other?layout=one") as client:
        assert client.payload_limit == DEFAULT_PAYLOAD_LIMIT


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/qo.db"])
async def test_other_stores_name_their_limit(url: str, tmp_path: Path) -> None:
    async with connect(url.format(tmp_path)) as client:
        with pytest.raises(InvalidTask, match="is 262,147 bytes, the limit is 262,144"):
            await client.enqueue("t", "x" * (PAYLOAD_LIMIT + 1))
        with pytest.raises(InvalidTask, match="the limit is 262,144"):
            await client.submit_many([client.new_task("t", LARGE)])


async def test_settings_override_the_limit_of_the_store(bucket: MemoryBucket, clock: ManualClock) -> None:
    engine = LargeValuesEngine(LAYOUTS["tasks"](bucket, clock), bucket, clock=clock)
    async with Client(engine, Settings(payload_limit=10), clock=clock) as client:
        with pytest.raises(InvalidTask, match="the limit is 10;"):
            await client.enqueue("t", "x" * 9)
        await asyncio.gather(*(client.enqueue("t", "x" * 8) for _ in range(3)))
