"""One object, many who write it."""

import asyncio
from collections import Counter

import pytest

from qo.bucket import ANY
from qo.buckets.counting import CountingBucket
from qo.buckets.memory import MemoryBucket
from qo.engines.one_object import Mode, OneObjectEngine, StorageBucket
from qo.errors import BadBatch, StorageError
from qo.model import Filter, Status, complete
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, new, stored, task_id, want
from tests.engines.bucket_troubles import SlowBucket
from tests.engines.fast_time import run


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", range(5))
def test_of_many_brokers_on_a_fresh_object_none_loses_a_task(mode: Mode, seed: int) -> None:
    async def race() -> None:
        bucket = SlowBucket(MemoryBucket(), writing=0.028 + seed / 1000)
        brokers = [OneObjectEngine(bucket, mode=mode) for _ in range(8)]

        async def submit(number: int, broker: OneObjectEngine) -> None:
            for n in range(4):
                name = 100 * number + n
                assert await broker.add([new(name)]) == [(task_id(name), True)]

        await asyncio.gather(*(submit(number, broker) for number, broker in enumerate(brokers)))
        got = await asyncio.gather(*(claim(broker, limit=5) for broker in brokers))
        claimed = Counter(task.id for tasks in got for task in tasks)
        assert claimed == Counter(task_id(100 * number + n) for number in range(8) for n in range(4))

    run(race())


async def test_calls_made_together_share_a_write_and_an_undisturbed_broker_does_not_read() -> None:
    bucket = CountingBucket(MemoryBucket())
    broker = OneObjectEngine(bucket)
    await asyncio.gather(*(broker.add([new(n)]) for n in range(50)))
    assert bucket.requests == {"get": 1, "put": 1}
    tasks = await claim(broker, limit=50)
    await asyncio.gather(*(broker.apply([complete(task)]) for task in tasks))
    assert bucket.requests == {"get": 1, "put": 3}


async def test_an_empty_poll_writes_nothing() -> None:
    bucket = CountingBucket(MemoryBucket())
    broker = OneObjectEngine(bucket)
    for _ in range(3):
        assert await claim(broker) == []
    await broker.wait(want(), 0.01)
    assert "put" not in bucket.requests


async def test_one_bad_call_fails_alone() -> None:
    broker = OneObjectEngine(MemoryBucket())
    answers = await asyncio.gather(
        broker.add([new(0)]),
        broker.write_note("a", b"", expected="wrong"),
        broker.find(Filter(), limit=1, after="nonsense"),
        broker.add([new(1), new(1)]),
        broker.add([new(2)]),
        return_exceptions=True,
    )
    assert [type(answer).__name__ for answer in answers] == ["list", "Conflict", "InvalidSetting", "BadBatch", "list"]
    assert isinstance(answers[3], BadBatch)
    assert len(await claim(broker)) == 2


@pytest.mark.parametrize("patience", [0.0, 0.001, 0.02, 0.0279])
def test_a_cancelled_claim_keeps_nothing(patience: float) -> None:
    async def cancelled() -> None:
        bucket = MemoryBucket()
        broker = OneObjectEngine(SlowBucket(bucket))
        await broker.add([new()])
        claiming = asyncio.create_task(claim(broker))
        await asyncio.sleep(patience)
        assert claiming.cancel()
        await broker.close()
        task = await stored(OneObjectEngine(bucket))
        assert (task.status, task.failures) == (Status.PENDING, 0)

    run(cancelled())


async def test_a_broker_sees_what_others_do() -> None:
    bucket = MemoryBucket()
    one, other = OneObjectEngine(bucket), OneObjectEngine(bucket)
    for n in range(5):
        await one.add([new(n)])
        (task,) = await claim(other)
        assert task.id == task_id(n)
        assert await one.apply([complete(task)]) == [True]
        assert (await stored(other, n)).status is Status.COMPLETED
    state = await one.read_state()
    assert sum(state.count().values()) == 5


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


class CASConflictError(Exception):
    """As jqueue calls it."""


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


class TestPlainStorage(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock) -> OneObjectEngine:
        return OneObjectEngine(StorageBucket(PlainStorage(), settle=0.0), clock=clock)


def test_brokers_that_begin_together_on_a_plain_storage_lose_nothing() -> None:
    async def race() -> None:
        storage = PlainStorage()
        brokers = [OneObjectEngine(StorageBucket(storage)) for _ in range(8)]
        await asyncio.gather(*(broker.add([new(n)]) for n, broker in enumerate(brokers)))
        assert len(await brokers[0].find(Filter(), limit=99)) == 8

    run(race())
