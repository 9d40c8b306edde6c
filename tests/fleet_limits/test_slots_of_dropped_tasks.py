"""Tasks that a worker claimed and does not run: they leave their slots and their share, and go back to the store."""

import asyncio

import qo
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns
from qo.fleet_limits.limit_state import LimitState
from qo.fleet_limits.rules import STATES, state_note
from qo.model import Status
from qo.notes import read_or
from qo.tasks import make_handler, make_options
from qo.testing.samples import claim, new
from qo.worker import Worker, WorkerSettings
from tests.conditions import forever, until
from tests.worker.bench import Bench, claim_ahead


async def test_runs_that_are_removed_twice_or_replaced_count_once(client: Client) -> None:
    async def send(tenant: int) -> None: ...

    await client.engine.add([new(n, type="send", group="tenant=1") for n in range(2)])
    handler = make_handler(send, type="send", options=make_options(send))
    first, second = (Run(task, handler, lambda *_: None) for task in await claim(client.engine, takes_groups=True))
    leased = LeasedRuns()
    for run in (first, second, first):
        leased.add(run)
    assert leased.by_group == {"send tenant=1": 2}
    for run in (first, first, second):
        leased.remove(run)
    assert leased.by_group == {}


async def test_a_task_that_is_cancelled_before_it_starts_leaves_its_slot(bench: Bench, client: Client) -> None:
    limit, proceed = qo.Limit(concurrency=2, key="customer_id"), asyncio.Event()

    async def charge(customer_id: int) -> None:  # noqa: ARG001
        await proceed.wait()

    async def holders() -> set[str]:
        state = await read_or(client.engine, state_note("type:charge"), LimitState, LimitState())
        return set(state.holders.get("customer_id=1", {}))

    async def are_two() -> bool:
        return len(await holders()) == 2

    async def is_one() -> bool:
        return len(await holders()) == 1

    bench.handle(charge, limit=limit)
    worker = Worker(client, bench.registry, WorkerSettings(concurrency=1, lease=0.6, poll=0.05))
    claim_ahead(worker, 2)
    ids = [await bench.submit("charge", {"customer_id": 1}, limit=limit) for _ in range(2)]
    running = asyncio.create_task(worker.run())
    await until(are_two)
    await client.cancel(ids[1])
    await until(is_one)
    proceed.set()
    await bench.ended(ids[0])
    worker.stop()
    await running


class _NoSlots(MemoryEngine):
    """Never answers a request for a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(STATES):
            self.asked.set()
            await forever()
        return await super().write_note(name, data, expected=expected)


async def test_tasks_go_back_if_the_worker_stops_while_it_asks_for_their_slots() -> None:
    engine = _NoSlots()
    async with Client(engine) as client:
        bench = Bench(client)

        async def charge() -> None: ...

        bench.handle(charge, limit=qo.Limit(concurrency=1))
        task_id = await bench.submit("charge")
        worker = Worker(client, bench.registry, WorkerSettings(poll=0.05))
        running = asyncio.create_task(worker.run())
        await engine.asked.wait()
        worker.abort()
        await asyncio.wait_for(running, 30)
        assert (await bench.stored(task_id)).status is Status.PENDING
