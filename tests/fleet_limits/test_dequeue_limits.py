"""`dequeue` under limits of the fleet: it takes tasks with a group, and never more than a limit allows."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pytest

import qo
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.fleet_limits import known_limit
from qo.fleet_limits.limit_state import LimitState
from qo.fleet_limits.rules import STATES, declare_limits, state_note
from qo.model import Change, ClaimRequest, Filter, Limit, NewTask, Note, Status, Task
from qo.notes import read
from qo.testing.samples import new
from tests.conditions import delay, until

_WAIT_LIMIT = 30.0  # seconds


@pytest.fixture
async def clients(engine: MemoryEngine) -> AsyncIterator[tuple[Client, Client]]:
    async with Client(engine) as one, Client(engine) as two:
        yield one, two


@pytest.fixture
def engine() -> MemoryEngine:
    return MemoryEngine()


def _tasks(*customers: int) -> list[NewTask]:
    return [
        new(n, group=f"customer={customer}", payload=b'{"customer":%d}' % customer)
        for n, customer in enumerate(customers)
    ]


async def _running(engine: MemoryEngine) -> list[str]:
    tasks = await engine.find(Filter(statuses=(Status.RUNNING,)), limit=100)
    return sorted(task.group or "" for task in tasks)


async def test_a_task_with_a_group_is_dequeued(clients: tuple[Client, Client], engine: MemoryEngine) -> None:
    await engine.add(_tasks(1, 1, 2))
    assert len(await clients[0].dequeue("t", batch_size=10)) == 3


async def test_clients_share_the_slots_of_each_key(clients: tuple[Client, Client], engine: MemoryEngine) -> None:
    one, two = clients
    await declare_limits(engine, {"t": Limit(concurrency=2, key="customer")}, {})
    await engine.add(_tasks(1, 1, 1, 1, 2))
    first = await one.dequeue("t", batch_size=10)
    assert sorted(task.group or "" for task in first) == ["customer=1", "customer=1", "customer=2"]
    assert await two.dequeue("t", batch_size=10) == []
    assert await _running(engine) == ["customer=1", "customer=1", "customer=2"]
    await one.ack(first[0])
    (next_one,) = await two.dequeue("t", batch_size=10, wait=_WAIT_LIMIT)
    assert next_one.group == "customer=1"
    assert next_one.attempt == 1  # it was left out, not handed back


async def test_a_limit_without_a_key_holds(clients: tuple[Client, Client], engine: MemoryEngine) -> None:
    one, two = clients
    await one.controls.limit_fleet("type:t", Limit(concurrency=3))
    await engine.add([new(n) for n in range(10)])
    tasks = await one.dequeue("t", batch_size=10)
    assert (len(tasks), await two.dequeue("t", batch_size=10)) == (3, [])
    await one.nack(tasks[0], delay=0)
    assert len(await two.dequeue(batch_size=10, wait=_WAIT_LIMIT)) == 1


async def test_a_limit_of_a_queue_holds_beside_other_queues(
    clients: tuple[Client, Client], engine: MemoryEngine
) -> None:
    one, _ = clients
    await one.controls.limit_fleet("queue:mail", Limit(concurrency=1))
    await engine.add([*(new(n, queue="mail") for n in range(3)), new(3, queue="other")])
    taken: list[Task] = []
    async with asyncio.timeout(_WAIT_LIMIT):
        while len(taken) < 2:
            taken += await one.dequeue(batch_size=10)
    assert sorted(task.queue for task in taken) == ["mail", "other"]
    assert await one.dequeue(batch_size=10) == []


async def test_a_rate_holds(clients: tuple[Client, Client], engine: MemoryEngine) -> None:
    one, two = clients
    await one.controls.limit_fleet("type:t", Limit(rate=5, per=3600))
    await engine.add([new(n) for n in range(10)])
    assert len(await one.dequeue("t", batch_size=10)) == 1  # the starts of a rate are spread over the time
    assert await two.dequeue("t", batch_size=10) == []


async def test_a_wait_for_a_slot_ends_soon_after_the_slot_is_free(
    clients: tuple[Client, Client], engine: MemoryEngine
) -> None:
    one, two = clients
    await declare_limits(engine, {"t": Limit(concurrency=1, key="customer")}, {})
    await engine.add(_tasks(1, 1))
    (held,) = await one.dequeue("t", batch_size=10)
    waiting = asyncio.create_task(two.dequeue("t", wait=_WAIT_LIMIT))
    await one.ack(held)
    assert len(await asyncio.wait_for(waiting, _WAIT_LIMIT)) == 1


async def test_the_slot_of_a_lost_lease_is_free_again(clients: tuple[Client, Client], engine: MemoryEngine) -> None:
    one, two = clients
    await declare_limits(engine, {"t": Limit(concurrency=1, key="customer")}, {})
    await engine.add(_tasks(1, 1))
    (held,) = await one.dequeue("t")
    await two.cancel(held.id)
    with pytest.raises(qo.LeaseLost):
        await one.ack(held)  # so the caller has ended
    assert len(await two.dequeue("t", wait=_WAIT_LIMIT)) == 1


async def test_a_client_that_is_closed_leaves_no_slot_of_a_settled_task(engine: MemoryEngine) -> None:
    await declare_limits(engine, {"t": Limit(concurrency=1, key="customer")}, {})
    async with Client(engine) as client:
        await engine.add(_tasks(1))
        (task,) = await client.dequeue("t")
        await client.ack(task)
    assert (await read(engine, state_note("type:t"), LimitState)).holders == {}


async def test_the_turns_of_tenants_are_shared_and_a_single_tenant_gets_all(
    clients: tuple[Client, Client], engine: MemoryEngine
) -> None:
    one, two = clients
    await declare_limits(engine, {}, {"t": "customer"})
    await engine.add(_tasks(*[1] * 20, *[2] * 3))
    groups = [task.group for task in await one.dequeue("t", batch_size=6)]
    assert groups.count("customer=2") == 3
    assert len(await two.dequeue("t", batch_size=17)) == 17


async def test_a_limit_for_a_key_holds_for_tasks_that_were_submitted_before_and_without_a_group(
    clients: tuple[Client, Client], engine: MemoryEngine
) -> None:
    one, two = clients
    await engine.add([new(n, payload=b'{"customer":%d}' % (n % 2)) for n in range(8)])
    await one.controls.limit_fleet("key:customer=1", Limit(concurrency=1))
    taken = await one.dequeue("t", batch_size=10)
    customers = sorted(qo.decode(task.payload)["customer"] for task in taken)
    assert customers == [0, 0, 0, 0, 1]
    for _ in range(5):
        assert await two.dequeue("t", batch_size=10) == []
    waiting = await engine.find(Filter(statuses=(Status.PENDING,)), limit=100)
    assert {(task.group, task.attempt) for task in waiting} == {("customer=1", 1)}  # claimed once, then left out


async def test_every_slot_is_used_again_by_many_clients(engine: MemoryEngine) -> None:
    await declare_limits(engine, {"t": Limit(concurrency=2, key="customer")}, {})
    await engine.add(_tasks(*[n % 3 for n in range(60)]))
    held, most = Counter[str](), Counter[str]()

    async def consume(client: Client) -> None:
        while tasks := await client.dequeue("t", batch_size=2, wait=5):
            held.update(task.group or "" for task in tasks)
            most.update({group: number - most[group] for group, number in held.items() if number > most[group]})
            for task in tasks:
                await asyncio.sleep(0)
                held[task.group or ""] -= 1
                await client.ack(task)

    async with Client(engine) as one, Client(engine) as two, Client(engine) as three:
        consumers = [asyncio.create_task(consume(client)) for client in (one, two, three)]

        async def all_done() -> bool:
            return len(await engine.find(Filter(statuses=(Status.COMPLETED,)), limit=100)) == 60

        await until(all_done)
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
    assert most == {"customer=0": 2, "customer=1": 2, "customer=2": 2}


class _Failing(MemoryEngine):
    """After a claim, the notes of limits cannot be read."""

    is_failing = False
    claims = 0

    async def claim(self, request: ClaimRequest) -> list[Task]:
        tasks = await super().claim(request)
        self.claims += 1
        self.is_failing = self.is_failing or bool(tasks)
        return tasks

    async def read_note(self, name: str) -> Note | None:
        if self.is_failing and name.startswith(STATES):
            raise StorageError("unreachable")
        return await super().read_note(name)


async def test_tasks_go_back_if_the_limits_cannot_be_read_before_another_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = _Failing()
    monkeypatch.setattr(known_limit, "_MIN_REFRESH", 0.0)  # a full group is looked up before each claim
    monkeypatch.setattr(known_limit, "_DURATION_FACTOR", 0.0)
    await declare_limits(engine, {"t": Limit(concurrency=1, key="customer")}, {"t": "customer"})
    await engine.add(_tasks(1, 1))
    async with Client(engine) as one, Client(engine) as two:
        assert [task.group for task in await one.dequeue("t")] == ["customer=1"]
        engine.is_failing = False
        assert await two.dequeue("t") == []  # it knows that the group is full
        await engine.add([new(7, group="customer=2")])
        with pytest.raises(StorageError):
            await two.dequeue("t", batch_size=3)
        engine.is_failing = False
        assert await _running(engine) == ["customer=1"]
        assert [task.group for task in await two.dequeue("t")] == ["customer=2"]


async def test_a_task_whose_rate_allows_it_now_does_not_wait_for_another_claim() -> None:
    engine = _Failing()
    await declare_limits(engine, {"t": Limit(rate=1, per=60)}, {"t": "customer", "u": "customer"})
    await engine.add(_tasks(1))
    await engine.add([new(10 + n, group="customer=1", type="u") for n in range(5)])
    async with Client(engine) as client:
        tasks = await client.dequeue(batch_size=10)
        assert ([task.type for task in tasks], engine.claims) == (["t", "u"], 1)
        engine.is_failing = False
        assert len(await client.dequeue(batch_size=10)) == 4  # without an instant they come together
        assert engine.claims > 2


class _SlowToChange(MemoryEngine):
    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        await delay(0.3)  # longer than a start may be late
        return await super().apply(changes)


async def test_a_task_whose_instant_passes_while_others_go_back_does_not_start() -> None:
    engine = _SlowToChange()
    await declare_limits(engine, {"t": Limit(concurrency=1, rate=20, per=1, key="customer")}, {})
    await engine.add([new(n, payload=b'{"customer":1}') for n in range(2)])
    async with Client(engine) as client:
        assert await client.dequeue("t", batch_size=2) == []
        assert len(await client.dequeue("t", batch_size=2, wait=_WAIT_LIMIT)) == 1
