"""Layouts of one object: whoever must read it first comes to write, however long those beside it go on."""

import asyncio
from itertools import count

import pytest

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.testing import ManualClock
from qo.testing.samples import new
from qo.testing.simulation import simulate
from tests.engines.layouts import LAYOUTS

WRITING, READING = 0.01, 0.06  # seconds: with thousands of tasks, reading them takes several times as long


class SlowToRead(MemoryBucket):
    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        await asyncio.sleep(READING)
        return blob

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await asyncio.sleep(WRITING)
        return await super().put(key, data, expected=expected)


@pytest.mark.parametrize("layout", ["one", "sqlite"])
@pytest.mark.parametrize("seed", range(3))
def test_a_newcomer_writes_beside_one_who_never_rests(layout: str, seed: int) -> None:
    simulate(_join(layout), seed)


async def _join(layout: str) -> None:
    clock = ManualClock()
    bucket = SlowToRead(clock)
    writer, newcomer = (LAYOUTS[layout](bucket, clock) for _ in range(2))
    writing = asyncio.create_task(_write_on(writer))
    assert len(await newcomer.add([new("late")])) == 1
    writing.cancel()
    await asyncio.wait([writing])
    for engine in (writer, newcomer):
        await engine.close()


async def _write_on(engine: Engine) -> None:
    for n in count():
        await engine.add([new(n)])
