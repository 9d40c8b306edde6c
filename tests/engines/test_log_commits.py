"""Commits to a replicated log: who wins a number, what a lost answer means, and what readers see meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from qo.bucket import Blob
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.buckets.thread_pool import ThreadPool
from qo.engine import Engine
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.keys import parse_key
from qo.engines.replicated_log.log_options import LogOptions
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Filter, Status, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.conditions import until
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import pass_time, run
from tests.engines.forked_child import errors_in_child
from tests.engines.gated_bucket import GatedBucket


class LossyBucket(MemoryBucket):
    """Loses the answer of the next write of a record, and may damage the reads that follow."""

    loses_answer = damages_reads = False

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        version = await super().put(key, data, expected=expected)
        if self.loses_answer and parse_key(key) is not None:
            self.loses_answer = False
            raise OutcomeUnknown("the answer is lost")
        return version

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        if blob is None or parse_key(key) is None or not self.damages_reads:
            return blob
        return blob._replace(data=blob.data[:-1] + bytes([blob.data[-1] ^ 1]))


async def names(engine: Engine) -> set[str]:
    return {task.id for task in await engine.find(Filter(), limit=99)}


async def numbers(bucket: MemoryBucket) -> list[int]:
    """The numbers of all records."""
    found = [parse_key(key) async for key in bucket.keys("log/")]
    return [name.first for name in found if name is not None]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def opened() -> AsyncIterator[Callable[..., ReplicatedLogEngine]]:
    engines: list[ReplicatedLogEngine] = []

    def open_engine(*args: object, **options: object) -> ReplicatedLogEngine:
        engines.append(ReplicatedLogEngine(*args, **options))  # type: ignore[arg-type]
        return engines[-1]

    yield open_engine
    for engine in engines:
        await engine.close()


Opened = Callable[..., ReplicatedLogEngine]


# --- races


async def test_the_loser_of_a_number_runs_its_calls_again_on_the_winners_state(
    clock: ManualClock, opened: Opened
) -> None:
    bucket = MemoryBucket(clock)
    winner, loser = opened(bucket, clock=clock), opened(bucket, clock=clock)
    await winner.add([new(1), new(2)])
    assert await names(loser) == {task_id(1), task_id(2)}
    assert (await claim_one(winner)).id == task_id(1)
    assert (await claim_one(loser)).id == task_id(2)
    assert await claim(winner) == await claim(loser) == []
    assert await numbers(bucket) == [1, 2, 3]


@pytest.mark.parametrize("seed", range(3))
def test_processes_that_write_at_the_same_time_claim_each_task_once(seed: int) -> None:
    async def race() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        engines = [
            ReplicatedLogEngine(SlowBucket(bucket, writing=0.02 + 0.001 * ((seed + n) % 3)), clock=clock)
            for n in range(4)
        ]

        async def work(number: int, engine: Engine) -> list[str]:
            await engine.add([new(100 * number + n) for n in range(5)])
            done: list[str] = []
            while tasks := await claim(engine, limit=2, worker_id=f"w{number}"):
                assert all(await engine.apply([complete(task) for task in tasks]))
                done += [task.id for task in tasks]
            return done

        done = [name for some in await asyncio.gather(*map(work, range(4), engines)) for name in some]
        assert sorted(done) == sorted({*done}) == sorted(task_id(100 * a + b) for a in range(4) for b in range(5))
        for engine in engines:
            assert {task.status for task in await engine.find(Filter(), limit=99)} == {Status.COMPLETED}
            await engine.close()
        used = await numbers(bucket)
        assert used == [*range(1, len(used) + 1)]

    run(race())


async def test_claims_that_find_nothing_are_confirmed(clock: ManualClock, opened: Opened) -> None:
    bucket = MemoryBucket(clock)
    one, other = opened(bucket, clock=clock), opened(bucket, clock=clock)
    await one.add([new(1)])
    assert len(await claim(one)) == 1
    await other.add([new(2)])
    assert [task.id for task in await claim(one)] == [task_id(2)]
    assert await claim(other) == []


async def test_the_loser_of_the_race_to_create_a_log_writes_into_the_winners(
    clock: ManualClock, opened: Opened
) -> None:
    bucket = MemoryBucket(clock)
    engines = [opened(GatedBucket(bucket), clock=clock) for _ in range(4)]
    await asyncio.gather(*(engine.add([new(n)]) for n, engine in enumerate(engines)))
    for engine in engines:
        assert await names(engine) == {task_id(n) for n in range(4)}
    assert len({key.split("/")[1] async for key in bucket.keys("log/") if "/records/" in key}) == 1


# --- lost answers


async def test_a_lost_answer_of_an_own_record_is_recognised(clock: ManualClock, opened: Opened) -> None:
    bucket = LossyBucket(clock)
    engine = opened(bucket, clock=clock)
    await engine.add([new(1)])
    bucket.loses_answer = True
    (task,) = await claim(engine)
    assert await numbers(bucket) == [1, 2]
    bucket.loses_answer = True
    assert await engine.apply([complete(task)]) == [True]
    assert await numbers(bucket) == [1, 2, 3]


async def test_a_damaged_read_back_of_an_own_record_is_not_a_lost_race(clock: ManualClock, opened: Opened) -> None:
    bucket = LossyBucket(clock)
    engine = opened(bucket, clock=clock)
    await engine.add([new(1)])
    bucket.loses_answer = bucket.damages_reads = True
    with pytest.raises(OutcomeUnknown):
        await claim(engine)
    bucket.damages_reads = False
    assert (await stored(engine, 1)).status is Status.RUNNING
    assert await numbers(bucket) == [1, 2]


def test_a_write_without_an_answer_is_found_or_not_and_the_next_one_succeeds() -> None:
    async def cut() -> None:
        clock = ManualClock()
        bucket = GatedBucket(MemoryBucket(clock))
        engine = ReplicatedLogEngine(bucket, clock=clock)
        await engine.add([new(1)])
        bucket.is_cut = True
        with pytest.raises(StorageError):
            await engine.add([new(2)])
        bucket.is_cut = False
        assert await engine.add([new(3)]) == [(task_id(3), True)]
        assert await names(engine) == {task_id(1), task_id(3)}
        await engine.close()

    run(cut())


# --- what readers see


async def test_reads_do_not_show_a_record_in_flight(clock: ManualClock, opened: Opened) -> None:
    bucket = GatedBucket(MemoryBucket(clock))
    engine = opened(bucket, clock=clock)
    await engine.add([new(1)])
    bucket.arrived.clear()
    bucket.gate.clear()
    adding = asyncio.create_task(engine.add([new(2)]))
    await bucket.arrived.wait()
    assert await names(engine) == {task_id(1)}
    assert await engine.get([task_id(2)]) == [None]
    bucket.gate.set()
    assert await adding == [(task_id(2), True)]
    assert await names(engine) == {task_id(1), task_id(2)}


async def test_a_read_sees_what_another_process_acknowledged(clock: ManualClock, opened: Opened) -> None:
    bucket = MemoryBucket(clock)
    one, other = opened(bucket, clock=clock), opened(bucket, clock=clock)
    for n in range(5):
        await one.add([new(n)])
        assert (await stored(other, n)).status is Status.PENDING


async def test_a_read_during_an_own_commit_waits_for_its_outcome(clock: ManualClock, opened: Opened) -> None:
    bucket = GatedBucket(MemoryBucket(clock))
    engine = opened(bucket, clock=clock)
    await engine.add([new(1)])
    bucket.written.clear()
    bucket.write_answers.clear()
    adding = asyncio.create_task(engine.add([new(2)]))
    await bucket.written.wait()
    reading = asyncio.create_task(names(engine))  # the record exists, so another process may have seen it
    for _ in range(50):
        await asyncio.sleep(0)
    assert not reading.done() and not adding.done()
    bucket.write_answers.set()
    assert await adding == [(task_id(2), True)]
    assert await reading == {task_id(1), task_id(2)}


async def test_concurrent_reads_share_a_request(clock: ManualClock, opened: Opened) -> None:
    bucket = CountingBucket(MemoryBucket(clock))
    engine = opened(bucket, clock=clock)
    await engine.add([new(1)])
    before = bucket.requests["get"]
    await asyncio.gather(*(engine.get([task_id(1)]) for _ in range(100)))
    assert bucket.requests["get"] - before <= 2


async def test_a_replica_far_behind_reads_records_in_parallel(clock: ManualClock, opened: Opened) -> None:
    bucket = MemoryBucket(clock)
    one = opened(bucket, clock=clock)
    for n in range(40):
        await one.add([new(n)])
    counting = CountingBucket(bucket)
    other = opened(counting, clock=clock)
    assert await names(other) == {task_id(n) for n in range(40)}
    assert counting.requests["get"] < 80


async def test_a_replica_far_behind_reads_merged_records(clock: ManualClock, opened: Opened) -> None:
    bucket = CountingBucket(MemoryBucket(clock))
    one, sleeper = (opened(bucket, LogOptions(block_size=8), clock=clock) for _ in range(2))
    await one.add([new(0)])
    assert await names(sleeper) == {task_id(0)}
    for n in range(1, 200):
        await one.add([new(n)])
    await one.repair()
    before = bucket.requests["get"]
    assert len(await sleeper.find(Filter(), limit=999)) == 200
    assert bucket.requests["get"] - before < 120
    assert (await claim_one(sleeper)).id == task_id(0)


# --- threads, cancellations and forks


async def test_cancelling_a_commit_in_a_thread_leaves_no_open_transaction(opened: Opened) -> None:
    begun, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()
    is_slow = False

    def slow_clock() -> float:
        if is_slow and threading.get_ident() != main:  # the transaction reads the clock in its thread
            begun.set()
            go_on.wait(60)
        return 1000.0

    bucket = MemoryBucket(ManualClock())
    engine = opened(bucket, clock=slow_clock, new_runner=lambda: ThreadPool(1).run)
    await engine.add([new(1)])
    before, is_slow = asyncio.all_tasks(), True
    adding = asyncio.create_task(engine.add([new(2)]))
    await until(begun.is_set)
    tasks = asyncio.all_tasks() - before
    assert len(tasks) > 1  # the caller's and the writer's
    for task in tasks:
        task.cancel()
    is_slow = False
    go_on.set()
    with pytest.raises((asyncio.CancelledError, StorageError)):
        await adding
    await asyncio.wait(tasks)
    assert await names(engine) == {task_id(1)}
    assert await engine.add([new(3)]) == [(task_id(3), True)]
    other = opened(bucket, clock=slow_clock)
    assert await names(other) == await names(engine) == {task_id(1), task_id(3)}


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.02, 0.0279])
def test_a_claim_cancelled_during_its_commit_hands_its_tasks_back(delay: float) -> None:
    async def cancelled() -> None:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        engine = ReplicatedLogEngine(SlowBucket(bucket), clock=clock)
        await engine.add([new()])
        claiming = asyncio.create_task(claim(engine))
        await pass_time(delay)
        assert claiming.cancel()
        await engine.close()
        reader = ReplicatedLogEngine(bucket, clock=clock)
        task = await stored(reader)
        assert (task.status, task.failures) == (Status.PENDING, 0)
        await reader.close()

    run(cancelled())


async def test_a_forked_child_is_refused(clock: ManualClock, opened: Opened) -> None:
    engine = opened(MemoryBucket(clock), clock=clock)
    await engine.add([new()])
    calls = (engine.count(), engine.claim(claim_request()), engine.wait(claim_request(), 1), engine.add([new(2)]))
    answers = await errors_in_child(calls)
    assert len(answers) == 4 and all("before the process forked" in answer for answer in answers), answers
    assert len(await claim(engine)) == 1
