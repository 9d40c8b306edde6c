"""Processes that write to one shard of a log take turns, and a process that only submits leaves them alone."""

import asyncio

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.clock import Clock
from qo.engines.contention import ContentionSignal
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.engines.replicated_log.writer_turns import WriterTurns
from qo.errors import Conflict
from qo.ids import new_id
from qo.model import NewTask, Task, complete
from qo.testing import ManualClock
from qo.testing.clock import simulate
from qo.testing.samples import claim_request, new
from tests.conditions import delay
from tests.engines.fast_time import loop_clock, pass_time, run

PUT, GET = 0.028, 0.025  # seconds, as in bench/log_goals.py


class Store(MemoryBucket):
    """A cloud store, which counts its requests."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.puts, self.conflicts, self.is_fast = 0, 0, False

    async def get(self, key: str) -> Blob | None:
        await delay(0.0 if self.is_fast else GET)
        return await super().get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await delay(0.0 if self.is_fast else PUT)
        self.puts += "/records/" in key
        try:
            return await super().put(key, data, expected=expected)
        except Conflict:
            self.conflicts += 1
            raise


def an_engine(store: Store, submit: SubmitMode = SubmitMode.DIRECT) -> ReplicatedLogEngine:
    return ReplicatedLogEngine(store, LogOptions(submit=submit), elapsed=loop_clock, wall=loop_clock)


async def _drain(workers: int, tasks: int, limit: int) -> tuple[float, Store, list[int]]:
    """Seconds, and how many tasks each of the workers has completed."""
    store = Store(loop_clock)
    store.is_fast = True
    filler = an_engine(store)
    for first in range(0, tasks, 1000):
        await filler.add([new(n) for n in range(first, min(tasks, first + 1000))])
    await filler.close()
    store.is_fast = False
    done, settled = [0] * workers, set[str]()
    engines = [an_engine(store) for _ in range(workers)]

    async def settle(place: int, claimed: list[Task]) -> None:
        answers = await engines[place].apply([complete(task) for task in claimed])
        done[place] += sum(answers)
        settled.update(task.id for task in claimed)

    async def work(place: int) -> None:
        settling = None
        while len(settled) < tasks:
            claimed = await engines[place].claim(claim_request(limit=limit))
            if settling is not None:
                await settling
            settling = asyncio.create_task(settle(place, claimed)) if claimed else None
            if settling is None:
                await pass_time(0.05)
        if settling is not None:
            await settling

    began, puts, conflicts = asyncio.get_running_loop().time(), store.puts, store.conflicts
    await asyncio.gather(*(work(place) for place in range(workers)))
    took = asyncio.get_running_loop().time() - began
    store.puts, store.conflicts = store.puts - puts, store.conflicts - conflicts
    for engine in engines:
        await engine.close()
    assert sum(done) == tasks
    return took, store, done


def test_workers_on_one_shard_take_turns_and_share_the_work() -> None:
    for workers, most_lost in ((2, 0.1), (4, 0.35)):
        took, store, done = simulate(_drain(workers, 4_000, 50), seed=1)
        assert store.conflicts < most_lost * store.puts
        assert min(done) > 0.6 * max(done)
        assert took < 5.0  # seconds of simulated time; four workers need 6.2 s if each turn is one commit


def test_a_worker_leaves_no_turns_to_a_process_that_has_stopped_writing() -> None:
    async def waits() -> list[float]:
        turns = WriterTurns(ContentionSignal(MemoryBucket(ManualClock()), "log"), "worker")
        loop, waits = asyncio.get_running_loop(), list[float]()
        for seq in range(10):
            turns.saw("producer", seq, 0.4 + 0.05 * (10 - seq))  # seconds ago
        for seq in range(10, 13):
            began = loop.time()
            await turns.begin()
            waits.append(round(loop.time() - began, 3))
            turns.attempts().may_try()
            await pass_time(0.05)
            turns.saw("worker", seq, 0.0)
            turns.end(has_read=True)
        await turns.finish()
        return waits

    assert run(waits()) == [0, 0, 0]


def test_a_process_waits_for_those_that_have_written_less_recently() -> None:
    async def wait() -> list[float]:
        turns = WriterTurns(ContentionSignal(MemoryBucket(ManualClock()), "log"), "ours")
        loop, waits = asyncio.get_running_loop(), list[float]()

        async def write(seq: int) -> None:
            began = loop.time()
            await turns.begin()
            waits.append(round(loop.time() - began, 3))
            turns.attempts().may_try()
            await pass_time(0.1)
            turns.saw("ours", seq, 0.0)
            turns.end(has_read=True)

        await write(1)
        await write(2)  # no other process is known
        turns.saw("a", 3, 0.0)
        await write(4)  # it has written more recently
        await write(5)
        turns.saw("b", 6, 0.0)
        await write(7)  # only one of them has written less recently
        await write(8)  # a turn of three writers has two commits
        await write(9)  # both may write first
        for seq in range(10, 16):
            turns.saw("ours", seq, 0.0)
        await write(16)  # neither has written for long
        turns.saw("c", 17, 60.0)
        turns.saw("ours", 18, 0.0)
        await write(19)  # its record is old
        await turns.finish()
        return waits

    assert run(wait()) == [0, 0, 0, 0.12, 0.12, 0, 0.24, 0, 0]


def test_a_crowd_races_instead_of_taking_turns() -> None:
    async def crowd(size: int) -> bool:
        turns = WriterTurns(ContentionSignal(MemoryBucket(ManualClock()), "log"), "ours")
        for seq in range(size):
            turns.saw(f"writer {seq}", seq, 0.0)
        return turns.is_crowded

    assert [run(crowd(size)) for size in (1, 2, 6, 7)] == [False, False, False, True]


async def test_a_process_that_only_submits_uses_the_inbox_beside_one_that_writes() -> None:
    bucket = MemoryBucket()
    worker, producer = (ReplicatedLogEngine(bucket) for _ in range(2))

    async def submitted() -> int:
        return len([key async for key in bucket.keys("log/") if "/submissions/" in key])

    def task() -> NewTask:
        return NewTask(id=new_id(), queue="q", type="t", payload=b"1")

    await producer.add([task()])
    assert await submitted() == 0  # nobody else writes
    await worker.claim(claim_request(limit=1))
    await producer.add([task()])
    await producer.add([task()])
    assert await submitted() == 1
    for engine in (worker, producer):
        await engine.close()
