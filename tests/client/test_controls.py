"""Notes that everyone obeys: pauses, rate limits, registrations; and no update lost in a race."""

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from qo import notes
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import Conflict, InvalidTask, StorageError
from qo.model import ANY, Counts, Filter, NewTask, cancel
from qo.notes import Controls, KnownTypes, WorkerNote
from qo.testing import ManualClock


async def test_nothing_is_paused_at_first(client: Client) -> None:
    assert await client.controls.read() == Controls()


async def test_everything_is_paused_and_resumed(client: Client) -> None:
    assert (await client.controls.pause()).paused
    assert (await client.controls.read()).paused
    assert await client.controls.resume() == Controls() == await client.controls.read()


async def test_some_queues_and_types_are_paused_and_resumed(client: Client) -> None:
    await client.controls.pause(queues=["a", "b"])
    await client.controls.pause(types=["t", "u"])
    control = await client.controls.resume(queues=["a"], types=["u"])
    assert control == Controls(paused_queues=frozenset("b"), paused_types=frozenset("t"))


async def test_pausing_some_does_not_resume_all(client: Client) -> None:
    await client.controls.pause()
    assert (await client.controls.pause(queues=["a"])).paused
    assert (await client.controls.resume(queues=["a"])).paused
    await client.controls.pause(types=["t"])
    assert await client.controls.resume() == Controls()


async def test_rates_are_limited_in_all_and_by_type_and_the_limit_lifted(client: Client) -> None:
    await client.controls.limit_rate(10)
    await client.controls.limit_rate(2.5, type="t")
    assert await client.controls.limit_rate(0) == Controls(rate_limits={"t": 2.5})


async def test_a_queue_takes_so_many_types_of_unfinished_tasks(client: Client) -> None:
    def some(types: range, into: str = "q") -> list[NewTask]:
        return [client.new_task(f"t{n}", b"{}", queue=into) for n in types]

    await client.controls.limit_types(20)
    await client.submit_many(some(range(20)))
    with pytest.raises(InvalidTask, match=r"^type: queue q has unfinished tasks of 20 types, and 1 more \('t20'\)"):
        await client.enqueue("t20", queue="q")
    with pytest.raises(InvalidTask, match=r"the limit of 20; .* `qo limit --max-types`"):
        await client.submit_many(some(range(19, 21)))
    await client.submit_many(some(range(20, 35), into="other"))
    assert sum((await client.engine.count()).values()) == 35  # nothing of the batch that was refused
    await client.submit_many(some(range(20)))
    await client.controls.limit_types(0)
    other = Client(client.engine)
    await other.submit_many(some(range(20, 25)))
    await client.controls.limit_types(25)
    assert await client.change_all(Filter(types=("t0", "t1")), cancel) == 4
    third = Client(client.engine)
    await third.submit_many(some(range(20, 27)) + some(range(2, 10)))
    with pytest.raises(InvalidTask, match=r"would exceed the limit of 25"):
        await third.submit_many(some(range(1)))
    with pytest.raises(InvalidTask, match=r"max_types: -1 is not a whole number"):
        await client.controls.limit_types(-1)


class _CountedEngine(MemoryEngine):
    counts = 0

    async def count(self, batch: str | None = None) -> Counts:
        self.counts += 1
        return await super().count(batch)


async def test_many_new_types_one_after_another_cost_few_counts() -> None:
    engine = _CountedEngine()
    client = Client(engine)
    for n in range(1000):
        await client.enqueue(f"t{n}")
    assert engine.counts <= 20
    with pytest.raises(InvalidTask, match=r"would exceed the limit of 1,000"):
        await client.enqueue("t1000")


async def test_the_default_limit_is_a_thousand_types(client: Client) -> None:
    with pytest.raises(InvalidTask, match=r"^type: .* would exceed the limit of 1,000"):
        await client.submit_many([client.new_task(f"t{n}", b"{}") for n in range(1001)])
    assert not await client.engine.count()
    await client.submit_many([client.new_task(f"t{n}", b"{}") for n in range(1000)])


@pytest.mark.parametrize("rate", [-1, float("nan"), float("inf")])
async def test_a_rate_that_is_none_is_refused(client: Client, rate: float) -> None:
    with pytest.raises(InvalidTask, match=r"^rate_limit: "):
        await client.controls.limit_rate(rate)
    assert await client.controls.read() == Controls()


async def test_names_that_are_none_are_refused(client: Client) -> None:
    with pytest.raises(InvalidTask, match=r"^queue: .*is not a list of names"):
        await client.controls.pause(queues="mail")
    with pytest.raises(InvalidTask, match=r"^type: "):
        await client.controls.resume(types=["a b"])
    with pytest.raises(InvalidTask, match=r"^type: "):
        await client.controls.limit_rate(1, type="a b")
    assert await client.controls.read() == Controls()


async def test_eight_racing_writers_lose_no_update(client: Client) -> None:
    async def write(writer: int) -> None:
        for n in range(5):

            def learned(known: KnownTypes, name: str = f"{writer}-{n}") -> KnownTypes:
                return replace(known, types=known.types | {name})

            await notes.change(client.engine, notes.KNOWN_TYPES, KnownTypes, learned)

    await asyncio.gather(*(write(writer) for writer in range(8)))
    known = await notes.read(client.engine, notes.KNOWN_TYPES, KnownTypes)
    assert known.types == {f"{writer}-{n}" for writer in range(8) for n in range(5)}


async def test_a_change_that_changes_nothing_is_not_written(client: Client) -> None:
    await client.controls.pause()
    before = await client.engine.read_note(notes.CONTROL)
    await client.controls.pause()
    assert await client.engine.read_note(notes.CONTROL) == before


class Contended(MemoryEngine):
    """Someone else is always faster."""

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if expected != ANY:
            raise Conflict(f"{name} {len(data)}")
        return await super().write_note(name, data, expected=expected)


async def test_a_note_that_can_never_be_written_is_an_error_and_not_an_endless_loop(clock: ManualClock) -> None:
    with pytest.raises(StorageError, match="'control' is being changed by other processes"):
        await Client(Contended(clock)).controls.pause()


async def test_a_note_that_is_not_ours_is_named(client: Client) -> None:
    await client.engine.write_note(notes.CONTROL, b"[1, 2", expected=ANY)
    with pytest.raises(StorageError, match="note 'control' cannot be read"):
        await client.controls.read()


async def test_everyone_registered_is_listed(client: Client, clock: ManualClock) -> None:
    note = WorkerNote(worker_id="w1", started_at=clock.now, last_heartbeat=clock.now, capacity=4)
    assert await client.workers() == []
    await client.engine.write_note(f"{notes.WORKERS}w1", msgspec.json.encode(note), expected=ANY)
    assert await client.workers() == [note]
