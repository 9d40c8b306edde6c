"""Layouts of one object: a process that must read first gets to write, however busy the other writers are."""

import asyncio
import os

import pytest

from qo.bucket import ANY, Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.clock import Clock
from qo.engine import Engine
from qo.engines.one_object import OneObjectEngine, StorageBucket
from qo.model import release
from qo.testing import ManualClock
from qo.testing.clock import simulate
from qo.testing.samples import claim, new
from tests.conditions import delay
from tests.engines.layouts import LAYOUTS

WRITING = 0.01  # seconds
TORTURE = bool(os.environ.get("QO_TORTURE"))
NEWCOMERS = 3 if TORTURE else 2
# Few who read quickly, many who read slowly; `make torture` tries what lies between.
CROWDS = [(1, 0.06), (3, 0.3), *([(1, 0.3), (3, 0.06)] if TORTURE else [])]


class SlowToRead(MemoryBucket):
    """With thousands of tasks, reading them takes many times as long as writing them."""

    def __init__(self, clock: ManualClock, reading: float) -> None:
        super().__init__(clock)
        self._reading = reading

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        await delay(self._reading)
        return blob

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await delay(WRITING)
        return await super().put(key, data, expected=expected)


class DistantBucket(SlowToRead):
    """The same objects, seen by a process in another region: every request takes longer."""

    def __init__(self, near: SlowToRead, clock: ManualClock, distance: float) -> None:
        super().__init__(clock, distance)
        self.__dict__ |= {**near.__dict__, "_reading": distance}

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await delay(self._reading)
        return await super().put(key, data, expected=expected)


class PlainStorage:
    """A storage with two methods, which has no place for a contention signal."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def read(self) -> tuple[bytes, str | None]:
        blob = await self._bucket.get("plain")
        return (blob.data, blob.version) if blob else (b"", None)

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        return await self._bucket.put("plain", content, expected=if_match or ANY)


def plain(bucket: Bucket, clock: Clock) -> Engine:
    return OneObjectEngine(StorageBucket(PlainStorage(bucket), settle=0.0), clock=clock)


ENGINES = {"one": LAYOUTS["one"], "sqlite": LAYOUTS["sqlite"], "log": LAYOUTS["log"], "plain": plain}


@pytest.mark.parametrize("layout", ENGINES)
@pytest.mark.parametrize(("writers", "reading"), CROWDS)
def test_new_writers_succeed_beside_writers_that_never_pause(layout: str, reading: float, writers: int) -> None:
    simulate(_join(layout, reading, writers), seed=1)


async def _join(layout: str, reading: float, writers: int) -> None:
    clock = ManualClock()
    bucket = SlowToRead(clock, reading)
    busy = [ENGINES[layout](bucket, clock) for _ in range(writers)]
    writing = [asyncio.create_task(_write_on(engine, f"w{n}")) for n, engine in enumerate(busy)]
    for n in range(NEWCOMERS):
        await delay(1)  # simulated; the other writers are busy now
        newcomer = ENGINES[layout](bucket, clock)
        assert len(await newcomer.add([new(f"late {n}")])) == 1
        await newcomer.close()
    for task in writing:
        assert not task.done(), task
        task.cancel()
    await asyncio.wait(writing)
    for engine in busy:
        await engine.close()


@pytest.mark.parametrize("layout", ["one", "sqlite", "log"])
def test_a_distant_newcomer_writes_beside_a_near_writer_that_never_pauses(layout: str) -> None:
    async def join() -> float:
        clock = ManualClock()
        near = SlowToRead(clock, reading=WRITING)
        busy = LAYOUTS[layout](near, clock)
        writing = asyncio.create_task(_write_on(busy, "near"))
        await delay(1)
        newcomer = LAYOUTS[layout](DistantBucket(near, clock, 20 * WRITING), clock)
        began = asyncio.get_running_loop().time()
        await newcomer.add([new("far")])
        took = asyncio.get_running_loop().time() - began
        writing.cancel()
        await asyncio.wait([writing])
        await newcomer.close()
        await busy.close()
        return took

    assert simulate(join(), seed=1) < 30  # seconds, half of the deadline of a write


async def _write_on(engine: Engine, name: str) -> None:
    await engine.add([new(name, type=name)])
    while True:
        await engine.apply([release(task) for task in await claim(engine, types=(name,))])


@pytest.mark.parametrize("layout", ["one", "sqlite", "log"])
def test_a_single_writer_does_not_pause(layout: str) -> None:
    rounds = 500

    async def write() -> None:
        clock = ManualClock()
        engine = LAYOUTS[layout](SlowToRead(clock, 0.02), clock)
        await engine.add([new(n) for n in range(2)])
        began = asyncio.get_running_loop().time()
        for _ in range(rounds):
            await engine.apply([release(task) for task in await claim(engine)])
        took = asyncio.get_running_loop().time() - began
        await engine.close()
        assert took < 1.1 * 2 * rounds * WRITING

    simulate(write(), seed=1)
