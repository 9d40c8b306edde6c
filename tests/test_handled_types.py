"""Clients that call `dequeue` register what they take, cheaply, and never fail because of it."""

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from qo.buckets.memory import MemoryBucket
from qo.client import Client
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite_object.engine import KEY
from qo.errors import Refused
from qo.handled_types import CONSUMERS, ConsumerRegistration, find_unhandled, read_consumers
from qo.model import Note
from qo.notes import KNOWN_TYPES, KnownTypes, read
from qo.s3_store import S3Store
from qo.testing import ManualClock
from tests.conditions import until


class CountingEngine(MemoryEngine):
    """Counts reads and writes of notes, and can refuse both."""

    is_refusing = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.calls: Counter[str] = Counter()

    async def read_note(self, name: str) -> Note | None:
        self._count(f"read {name}")
        return await super().read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        self._count(f"write {name}")
        return await super().write_note(name, data, expected=expected)

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        if self.is_refusing:
            raise Refused("not allowed")


async def test_a_client_registers_once_however_often_it_dequeues() -> None:
    engine = CountingEngine(ManualClock())
    async with Client(engine) as client:
        for _ in range(100):
            await client.enqueue("t")
            (task,) = await client.dequeue("t")
            await client.ack(task)
    about = {call: number for call, number in engine.calls.items() if CONSUMERS in call or KNOWN_TYPES in call}
    assert about == {"read consumers": 1, "write consumers": 1, "read types": 1, "write types": 1}


async def test_of_many_clients_one_renews_the_registration() -> None:
    clock = ManualClock()
    engine = CountingEngine(clock)
    clients = [ConsumerRegistration(engine, clock) for _ in range(20)]
    for _ in range(10):
        for client in clients:
            client.register("", "t")
            await client.finish()
        clock.advance(30)
    assert engine.calls["read consumers"] == 200 and engine.calls["write consumers"] == 10
    assert (await read_consumers(engine)).taken(clock.now) == [("", "t")]
    clock.advance(90)
    assert (await read_consumers(engine)).taken(clock.now) == []


async def test_the_note_keeps_what_was_renewed_last() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    registration = ConsumerRegistration(engine, clock)
    for number in range(1005):
        registration.register("", f"t{number}")
        await registration.finish()
        clock.advance(0.01)
    taken = (await read_consumers(engine)).taken(clock.now)
    assert len(taken) == 1000 and taken[-1] == ("", "t1004")


async def test_a_client_that_may_not_register_dequeues_all_the_same() -> None:
    engine = CountingEngine(ManualClock())
    async with Client(engine) as client:
        await client.enqueue("t", {"customer": 1}, fair_by="customer")
        added = await client.enqueue("t")
        engine.is_refusing = True
        (task,) = await client.dequeue("t", batch_size=10)  # it may not read the limits either, which groups need
        assert task.id == added.id


async def test_types_that_were_taken_become_known() -> None:
    engine = MemoryEngine(ManualClock())
    async with Client(engine) as client:
        await client.enqueue("t")
        await client.dequeue()
        await client.dequeue("other")
    assert (await read(engine, KNOWN_TYPES, KnownTypes)).types == {"t", "other"}


async def unhandled_are(engine: MemoryEngine, clock: ManualClock, lanes: dict[tuple[str, str], int]) -> bool:
    return await find_unhandled(engine, clock.now) == lanes


async def test_what_a_client_takes_is_handled_until_it_is_silent() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    async with Client(engine) as client:
        for queue in ("mine", "other"):
            await client.dequeue("t", queue=queue)
            await client.enqueue("t", queue="mine")
            await client.enqueue("u", queue="mine")
            expected = {("mine", "u"): 1 if queue == "mine" else 2}
            await until(lambda lanes: unhandled_are(engine, clock, lanes), expected)
        clock.advance(91)
        assert await find_unhandled(engine, clock.now) == {("mine", "t"): 2, ("mine", "u"): 2}


async def test_a_client_that_works_on_a_task_stays_registered_for_as_long_as_its_lease() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    async with Client(engine) as client:
        assert await client.dequeue() == []
        await client.enqueue("a")
        assert [task.type for task in await client.dequeue(lease=300)] == ["a"]
        await client.enqueue("b")
        await until(is_taken_until, engine, clock.now + 300)
        clock.advance(299)
        assert await find_unhandled(engine, clock.now) == {}
        clock.advance(2)
        assert await find_unhandled(engine, clock.now) == {("default", "b"): 1}


async def is_taken_until(engine: MemoryEngine, instant: float) -> bool:
    return (await read_consumers(engine)).until.get("/") == instant


async def test_a_heartbeat_renews_the_registration() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    async with Client(engine) as client:
        await client.enqueue("a")
        (task,) = await client.dequeue(lease=100)
        await until(is_taken_until, engine, clock.now + 100)
        await client.heartbeat(task, lease=400)
        await until(is_taken_until, engine, clock.now + 400)
        await client.ack(task)


async def test_a_shorter_lease_does_not_shorten_a_registration() -> None:
    clock = ManualClock()
    engine = MemoryEngine(clock)
    long, short = ConsumerRegistration(engine, clock), ConsumerRegistration(engine, clock)
    long.register("", "", lease=300)
    await long.finish()
    short.register("", "")
    await short.finish()
    assert (await read_consumers(engine)).until == {"/": clock.now + 300}


@pytest.mark.parametrize("mode", ["durable", "local"])
async def test_an_idle_dequeue_of_an_s3_store_writes_nothing(mode: Literal["durable", "local"]) -> None:
    """Such a write would conflict with those of other processes, and prolong the ownership of a local store."""
    bucket = MemoryBucket(ManualClock())
    async with await S3Store.create(bucket) as producer:
        await producer.enqueue("t", queue="other")
    versions = len(await bucket.versions(KEY))
    async with await S3Store.create(bucket, mode=mode) as idle:
        assert await idle.dequeue("t", queue="jobs") == []
    assert len(await bucket.versions(KEY)) == versions > 0
    async with await S3Store.create(bucket, mode=mode) as busy:
        assert len(await busy.dequeue()) == 1
    async with await S3Store.create(bucket) as reader:
        assert [await reader.engine.read_note(name) for name in (CONSUMERS, KNOWN_TYPES)] == [None, None]


@pytest.mark.parametrize(("mode", "registers"), [("durable", True), ("local", False)])
def test_only_clients_of_stores_in_mode_local_do_not_register(tmp_path: Path, mode: str, *, registers: bool) -> None:
    assert open_engine(f"file://{tmp_path}?layout=sqlite&mode={mode}").registers_consumers is registers
