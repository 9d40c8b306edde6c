"""The layout `one` over a foreign object, a damaged response, and a user's own storage."""

import asyncio

import pytest

from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.one_object import OneObjectEngine, StorageBucket
from qo.errors import StorageError
from qo.model import Filter
from qo.storages import InMemoryStorage
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, new
from tests.engines.contract_parts import CONTENT, left_to_torture
from tests.engines.damage import SpoilingBucket, damage_one
from tests.engines.fast_time import run
from tests.engines.few_histories import FewHistories


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("junk", [b"junk", b"{}", b"\xff", b"[1]"])
async def test_an_object_that_is_not_a_queue_is_refused_and_left_alone(junk: bytes) -> None:
    bucket = MemoryBucket()
    await bucket.put("queue.json", junk, expected=ANY)
    broker = OneObjectEngine(bucket)
    for _ in range(2):
        with pytest.raises(StorageError, match="does not hold a queue"):
            await broker.add([new()])
    blob = await bucket.get("queue.json")
    assert blob is not None and blob.data == junk


async def test_a_damaged_response_does_not_set_a_task_aside(clock: ManualClock) -> None:
    bucket = SpoilingBucket(clock)
    await OneObjectEngine(bucket, clock=clock).add([new(n) for n in range(3)])
    bucket.spoiled_reads = 1
    engine = OneObjectEngine(bucket, clock=clock)
    assert len(await claim(engine)) == 3
    assert bucket.spoiled_reads == 0
    assert await engine.notes("") == []


class CASConflictError(Exception):
    """The error with the name that jqueue uses."""


class PlainStorage:
    """A storage as users write them: two methods."""

    def __init__(self) -> None:
        self._content, self._version = b"", 0

    async def read(self) -> tuple[bytes, str | None]:
        await asyncio.sleep(0)
        return self._content, str(self._version) if self._version else None

    async def write(self, content: bytes, if_match: str | None = None) -> str:
        await asyncio.sleep(0)
        if if_match is not None and if_match != str(self._version):
            raise CASConflictError
        self._content, self._version = content, self._version + 1
        return str(self._version)


class TestPlainStorage(FewHistories, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> OneObjectEngine:
        return OneObjectEngine(StorageBucket(PlainStorage(), settle=0.0), clock=clock)

    async def damage(self, engine: Engine, task_id: str) -> None:
        assert isinstance(engine, OneObjectEngine)
        await damage_one(engine, task_id)


# Only the writes differ from those of TestPlainStorage.
@left_to_torture(*CONTENT)
class TestCreatingStorage(TestPlainStorage):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> OneObjectEngine:
        return OneObjectEngine(StorageBucket(InMemoryStorage()), clock=clock)


def test_processes_that_start_together_on_a_plain_storage_lose_nothing() -> None:
    async def race() -> None:
        storage = PlainStorage()
        brokers = [OneObjectEngine(StorageBucket(storage)) for _ in range(8)]
        await asyncio.gather(*(broker.add([new(n)]) for n, broker in enumerate(brokers)))
        assert len(await brokers[0].find(Filter(), limit=99)) == 8

    run(race())
