"""The contention signal: whose signal counts, for how long, and which writers read it."""

import asyncio
import random

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.contention import ContentionSignal, WriteAttempts
from qo.model import release
from qo.testing import ManualClock
from qo.testing.clock import simulate
from qo.testing.samples import claim, new
from tests.conditions import delay
from tests.engines.fast_time import pass_time, run
from tests.engines.layouts import LAYOUTS
from tests.engines.test_layouts_races import WRITING, DistantBucket, SlowToRead

KEY = "queue.json"


async def _rounds(engine: Engine, number: int) -> float:
    """The seconds of this many writes, two in each round."""
    began = asyncio.get_running_loop().time()
    for _ in range(number):
        await engine.apply([release(task) for task in await claim(engine)])
    return asyncio.get_running_loop().time() - began


def test_a_distant_process_writes_beside_a_near_one_that_pauses_for_too_short_a_time() -> None:
    """The near one pauses for longer than its own cycle, and for less than the other one needs."""

    async def join() -> float:
        clock = ManualClock()
        near = SlowToRead(clock, reading=3 * WRITING)
        busy = LAYOUTS["log"](near, clock)

        async def write() -> None:
            n = 0
            while True:
                await busy.add([new(n := n + 1)])
                await delay(0.08)

        writing = asyncio.create_task(write())
        await delay(3)
        newcomer = LAYOUTS["log"](DistantBucket(near, clock, 0.2), clock)
        began = asyncio.get_running_loop().time()
        await newcomer.add([new("far")])
        took = asyncio.get_running_loop().time() - began
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])
        await newcomer.close()
        await busy.close()
        return took

    assert max(simulate(join(), seed) for seed in range(3)) < 15


def test_a_signal_of_last_month_does_not_slow_a_new_process() -> None:
    async def write() -> float:
        clock = ManualClock()
        bucket = SlowToRead(clock, 0.02)
        await ContentionSignal(bucket, KEY).send(1.0)
        assert await bucket.get(f"{KEY}.contention") is not None
        clock.advance(30 * 86_400)
        engine = LAYOUTS["one"](bucket, clock)
        await engine.add([new(1)])
        took = await _rounds(engine, 500)
        await engine.close()
        return took

    assert simulate(write(), seed=1) < 1.1 * 1000 * WRITING


def test_the_signal_of_a_near_loser_does_not_replace_that_of_a_distant_one() -> None:
    async def poll() -> tuple[bool, float]:
        bucket = MemoryBucket(ManualClock())
        writer, far, near = (ContentionSignal(bucket, KEY) for _ in range(3))
        await far.send(0.2)
        await near.send(0.02)
        return await writer.was_sent(), writer.attempt_duration

    assert run(poll()) == (True, 0.2)


def test_a_loser_renews_its_own_signal_although_its_attempts_got_shorter() -> None:
    async def poll() -> list[bool]:
        bucket = MemoryBucket(ManualClock())
        writer, loser = ContentionSignal(bucket, KEY), ContentionSignal(bucket, KEY)
        polls = list[bool]()
        for duration in (0.2, 0.19, 0.1):
            await loser.send(duration)
            polls.append(await writer.was_sent())
            await pass_time(6)
        return polls

    assert run(poll()) == [True, True, True]


def test_a_near_loser_replaces_the_signal_of_a_distant_one_that_has_ended() -> None:
    async def poll() -> list[bool]:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        writer, far, near = (ContentionSignal(bucket, KEY) for _ in range(3))
        await far.send(0.2)
        polls = [await writer.was_sent()]
        clock.advance(6)
        await near.send(0.02)
        return [*polls, await writer.was_sent()]

    assert run(poll()) == [True, True]


def test_a_writer_remembers_the_longest_attempt_for_a_while() -> None:
    async def poll() -> list[float]:
        clock = ManualClock()
        bucket = MemoryBucket(clock)
        writer, far, near = (ContentionSignal(bucket, KEY) for _ in range(3))
        await far.send(0.2)
        await writer.was_sent()
        clock.advance(11)  # the signal of the distant loser is old
        await near.send(0.02)
        await pass_time(5)
        await writer.was_sent()
        durations = [writer.attempt_duration]
        await pass_time(6)
        return [*durations, writer.attempt_duration]

    assert run(poll()) == [0.2, 0.02]


def test_a_loser_that_has_waited_long_asks_for_a_longer_gap() -> None:
    async def wait() -> list[float]:
        bucket, durations = MemoryBucket(ManualClock()), list[float]()
        loser, writer = ContentionSignal(bucket, KEY), ContentionSignal(bucket, KEY)
        attempts = WriteAttempts(loser)
        for _ in range(2):
            assert attempts.may_try()
            await pass_time(0.1)
            await attempts.report_conflict()
            await writer.was_sent()
            durations.append(round(writer.attempt_duration, 1))
            await pass_time(20)
        return durations

    assert run(wait()) == [0.1, 2.0]


class Stalling(MemoryBucket):
    """The same objects, seen by a process that often has to wait for a processor."""

    def __init__(self, shared: MemoryBucket, dice: random.Random) -> None:
        self.__dict__ |= shared.__dict__
        self._dice = dice

    async def _stall(self) -> None:
        await delay(0.003 + (self._dice.random() < 0.3) * self._dice.expovariate(1 / 0.3))

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        await self._stall()
        return blob

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await self._stall()
        return await super().put(key, data, expected=expected)


def test_no_process_of_four_starves_on_an_overloaded_machine() -> None:
    async def write() -> float:
        clock, dice, loop = ManualClock(), random.Random(1), asyncio.get_running_loop()
        shared, longest = MemoryBucket(clock), 0.0

        async def work(name: str) -> None:
            nonlocal longest
            engine = LAYOUTS["one"](Stalling(shared, dice), clock)
            await engine.add([new(name, type=name)])
            while (began := loop.time()) < 120:
                tasks = await claim(engine, types=(name,))
                claimed_at = loop.time()
                await engine.apply([release(task) for task in tasks])
                longest = max(longest, claimed_at - began, loop.time() - claimed_at)
            await engine.close()

        await asyncio.gather(*(work(f"w{n}") for n in range(4)))
        return longest

    assert simulate(write(), seed=1) < 15  # seconds; it was 19 to 23 while losers slept for up to 16 attempts
