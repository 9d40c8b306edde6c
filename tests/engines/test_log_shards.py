"""A log of several shards: where tasks are, who claims them, and what a process reads."""

import asyncio
from pathlib import Path

import pytest

from qo.bucket import ANY, Blob
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.engines.replicated_log.doctor import examine_log
from qo.engines.replicated_log.keys import shard_of
from qo.engines.replicated_log.log_meta import read_meta
from qo.engines.replicated_log.shard_owners import PERIOD, owned_shards
from qo.errors import InvalidSetting, OutcomeUnknown, Refused
from qo.ids import new_token
from qo.model import Filter, Status, Task, complete, cursor
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, task_id
from tests.engines.fast_time import loop_clock, pass_time, run

SHARDS = 4
FOUR = LogOptions(shard_count=SHARDS, submit=SubmitMode.DIRECT)


class KeyedBucket(MemoryBucket):
    """Notes the keys of requests, and fails those with a certain prefix."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.asked: list[str] = []
        self.broken = self.slow = "nothing"
        self.gate = asyncio.Event()  # which slow requests wait for

    async def get(self, key: str) -> Blob | None:
        self.asked.append(key)
        return await super().get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self.broken in key:
            raise Refused("the store refuses it")
        if self.slow in key:
            await self.gate.wait()
        return await super().put(key, data, expected=expected)


@pytest.fixture
def bucket(clock: ManualClock) -> KeyedBucket:
    return KeyedBucket(clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def four(bucket: MemoryBucket, clock: ManualClock) -> Engine:
    return ReplicatedLogEngine(bucket, FOUR, clock=clock)


async def records(bucket: MemoryBucket) -> int:
    return len([key async for key in bucket.keys("log/") if "/records/" in key])


def shards_of(tasks: list[Task]) -> set[int]:
    return {shard_of(task.id, SHARDS) for task in tasks}


# --- the number of shards


async def test_the_number_of_shards_is_recorded_and_cannot_change(tmp_path: Path) -> None:
    url = f"file://{tmp_path}?layout=log"
    creator = open_engine(f"{url}&shards=4")
    await creator.open()
    await creator.add([new(n) for n in range(20)])
    await creator.close()
    for same in (url, f"file://{tmp_path}", f"{url}&shards=4"):
        engine = open_engine(same)
        await engine.open()
        assert len(await engine.find(Filter(), limit=100)) == 20
        await engine.close()
    for other in (f"{url}&shards=1", f"{url}&shards=8"):
        with pytest.raises(InvalidSetting, match="this queue was created with shards=4"):
            await open_engine(other).open()


@pytest.mark.parametrize("shards", ["0", "257", "0-7", "many", ""])
def test_an_impossible_number_of_shards_is_refused(shards: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=r"shards=.*a whole number from 1 to 256"):
        open_engine(f"file://{tmp_path}?layout=log&shards={shards}")


def test_the_shards_of_the_environment_are_those_of_the_layout_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_SHARDS", "0-7")
    open_engine(f"file://{tmp_path}?layout=log")


# --- where tasks are


async def test_a_producer_reads_only_the_shard_of_its_task(bucket: KeyedBucket, clock: ManualClock) -> None:
    await four(bucket, clock).add([new(n) for n in range(20)])
    meta = await read_meta(bucket)
    assert meta is not None
    bucket.asked.clear()
    await four(bucket, clock).add([new(77)])
    asked = {key.split("/")[2] for key in bucket.asked if key.startswith(f"log/{meta.id}/")}
    assert asked == {f"{shard_of(task_id(77), SHARDS):02x}"}


async def test_a_listing_continues_over_all_shards(bucket: KeyedBucket, clock: ManualClock) -> None:
    engine = four(bucket, clock)
    for first in range(0, 60, 20):
        await engine.add([new(n) for n in range(first, first + 20)])
        clock.advance(1.0)
    found, after = list[str](), ""
    while page := await engine.find(Filter(), limit=7, after=after):
        assert len(page) == 7 or len(found) == 56
        found += [task.id for task in page]
        after = cursor(page[-1])
    assert found == [task_id(n) for n in reversed(range(60))]


async def test_a_page_of_many_tasks_in_one_shard_is_complete(bucket: KeyedBucket, clock: ManualClock) -> None:
    """The newest tasks are all in one shard, so their share of the page is larger than the others'."""
    engine = four(bucket, clock)
    numbers = [n for n in range(400) if shard_of(task_id(n), SHARDS) == 2]
    await engine.add([new(n) for n in range(400, 440)])
    clock.advance(1.0)
    await engine.add([new(n) for n in numbers])
    page = await engine.find(Filter(), limit=len(numbers))
    assert [task.id for task in page] == [task_id(n) for n in reversed(numbers)]


async def test_a_task_that_follows_another_under_its_key_is_found_in_the_shard_of_the_first(
    bucket: KeyedBucket, clock: ManualClock
) -> None:
    keyed = {"idempotency_key": "k", "window": 1.0}
    far = next(n for n in range(1, 99) if shard_of(task_id(n), SHARDS) != shard_of(task_id(0), SHARDS))
    engine = four(bucket, clock)
    await engine.add([new(0, **keyed)])
    assert await engine.apply([complete(task) for task in await claim(engine)]) == [True]
    clock.advance(5.0)
    assert await engine.add([new(0, next_id=task_id(far), **keyed)]) == [(task_id(far), True)]
    assert await engine.add([new(0, next_id=task_id(99), **keyed)]) == [(task_id(far), False)]
    other = four(bucket, clock)
    (task,) = await claim(other)
    assert task.id == task_id(far)
    assert await other.apply([complete(task)]) == [True]
    (stored,) = await engine.get([task_id(far)])
    assert stored is not None
    assert stored.status is Status.COMPLETED
    assert [event.status for event in await engine.history(task_id(far))] == ["pending", "running", "completed"]
    assert await engine.delete([task_id(far)]) == [True]
    assert await other.get([task_id(far)]) == [None]


async def test_the_inbox_of_every_shard_is_emptied_and_the_doctor_checks_all_of_them(
    bucket: KeyedBucket, clock: ManualClock
) -> None:
    await four(bucket, clock).add([new(99)])
    producer = ReplicatedLogEngine(bucket, LogOptions(submit=SubmitMode.INBOX), clock=clock)
    await producer.add([new(n) for n in range(20)])
    worker = four(bucket, clock)
    await worker.repair()
    assert len(await worker.find(Filter(), limit=100)) == 21
    assert not [key async for key in bucket.keys("log/") if "/submissions/" in key]
    findings = await examine_log(bucket)
    assert [(finding.name, finding.ok) for finding in findings] == [
        (name, True)
        for name in ("log", "records", "merged", "images", "submissions", "garbage", "counts", "cold segments")
    ]
    assert [f"shard {shard}: format 1, 4 shard(s)" in findings[0].detail for shard in range(4)] == [True] * 4
    assert findings[4].detail == "4 shards: no submissions are waiting"
    (damaged,) = [key async for key in bucket.keys("log/") if "/02/records/" in key and key.endswith("1")]
    await bucket.put(damaged, b"half", expected=ANY)
    (problem,) = [finding for finding in await examine_log(bucket) if finding.ok is False]
    assert problem.name == "records of shard 2"
    assert damaged in problem.detail


# --- failures


async def test_a_batch_of_which_a_shard_fails_may_be_repeated(bucket: KeyedBucket, clock: ManualClock) -> None:
    engine, tasks = four(bucket, clock), [new(n) for n in range(20)]
    await engine.add([new(99)])
    bucket.broken = "/02/records/"
    with pytest.raises(OutcomeUnknown, match="shards are stored"):
        await engine.add(tasks)
    bucket.broken = "nothing"
    again = await engine.add(tasks)
    assert {answer.new for answer in again} == {True, False}
    assert len(await engine.find(Filter(), limit=100)) == 21


async def test_a_repeated_claim_returns_what_all_shards_have_leased(bucket: KeyedBucket, clock: ManualClock) -> None:
    engine = four(bucket, clock)
    await engine.add([new(n) for n in range(20)])
    request = claim_request(limit=20)
    bucket.broken = "/02/records/"
    with pytest.raises(OutcomeUnknown):
        await engine.claim(request)
    bucket.broken = "nothing"
    repeat = claim_request(limit=20, lease_id=request.lease_id, is_repeat=True)
    leased = await engine.claim(repeat)
    assert shards_of(leased) == {0, 1, 3}
    assert [task.id for task in await four(bucket, clock).claim(repeat)] == [task.id for task in leased]
    assert shards_of(await claim(engine, limit=20)) == {2}


async def test_a_cancelled_claim_gives_back_the_tasks_of_all_shards(bucket: KeyedBucket, clock: ManualClock) -> None:
    engine = four(bucket, clock)
    await engine.add([new(n) for n in range(20)])
    before, bucket.slow = await records(bucket), "/02/records/"
    claiming = asyncio.create_task(claim(engine, limit=20))
    while await records(bucket) < before + 3:
        await asyncio.sleep(0)
    for _ in range(100):  # the other shards have leased their tasks, and their claims end
        await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    bucket.gate.set()
    await engine.close()
    assert len(await claim(four(bucket, clock), limit=20)) == 20


# --- owners


@pytest.mark.parametrize(("members", "shards"), [(1, 4), (3, 16), (4, 4), (7, 64), (64, 16), (5, 1)])
def test_shards_are_shared_out_evenly(members: int, shards: int) -> None:
    names = [new_token() for _ in range(members)]
    owned = {name: owned_shards(name, names, shards) for name in names}
    assert {shard for some in owned.values() for shard in some} == {*range(shards)}
    sizes = [len(some) for some in owned.values()]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


def test_a_process_that_comes_moves_few_shards() -> None:
    names = [new_token() for _ in range(8)]
    before = {name: set(owned_shards(name, names, 64)) for name in names}
    after = {name: set(owned_shards(name, [*names, new_token()], 64)) for name in names}
    assert sum(len(after[name] - before[name]) for name in names) < 32


def test_processes_claim_from_their_own_shards_first_and_then_from_others() -> None:
    async def work() -> None:
        bucket = MemoryBucket(loop_clock)
        one, two = (ReplicatedLogEngine(bucket, FOUR) for _ in range(2))
        await claim(one)
        await one.add([new(n) for n in range(40)])
        await claim(two, limit=1)
        await pass_time(PERIOD + 1.0)
        await claim(one, limit=1)  # looks for others in the background
        await pass_time(1.0)
        first, second = await claim(one, limit=40), await claim(two, limit=40)
        assert shards_of(first).isdisjoint(shards_of(second))
        assert len(shards_of(first)) == len(shards_of(second)) == 2
        await two.add([new(n) for n in range(100, 140)])
        stolen = [task for _ in range(4) for task in await claim(one, limit=40)]
        assert len(stolen) == 40
        await one.close()
        assert await claim(two) == []
        await two.close()

    run(work())


def test_the_shards_of_a_dead_process_are_taken_over() -> None:
    async def work() -> None:
        bucket = MemoryBucket(loop_clock)
        dead, alive = (ReplicatedLogEngine(bucket, FOUR) for _ in range(2))
        await dead.add([new(0)])
        assert len(await claim(dead)) == 1
        await claim(alive)
        for _ in range(5):
            await pass_time(PERIOD)
            await claim(alive)
        await alive.add([new(n) for n in range(1, 41)])
        assert shards_of(await claim(alive, limit=40)) == {0, 1, 2, 3}

    run(work())


def test_a_busy_process_helps_in_a_shard_whose_tasks_wait_for_long() -> None:
    async def work() -> None:
        bucket = MemoryBucket(loop_clock)
        owner, busy = (ReplicatedLogEngine(bucket, FOUR) for _ in range(2))
        await claim(owner)
        await owner.add([new(n, type="other") for n in range(40)])
        await claim(owner, types=("t",))
        await claim(busy, types=("t",))
        await pass_time(10.0)
        waits: set[str] = {task_id(n) for n in range(40)}
        for second in range(30):
            await busy.add([new(n) for n in range(1000 + 40 * second, 1040 + 40 * second)])
            claimed = await claim(busy, limit=10)
            waits -= {task.id for task in claimed}
            await pass_time(1.0)
        assert not waits

    run(work())
