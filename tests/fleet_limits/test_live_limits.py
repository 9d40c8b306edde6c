"""Limits that are set at run time: they replace those of the code, and are shown with who holds their slots."""

import asyncio
from typing import Any

import qo
from qo.client import Client
from qo.fleet_limits.limit_status import limit_statuses
from qo.fleet_limits.repair import repair_limits
from qo.model import Limit, Status
from tests.conditions import until
from tests.worker.bench import Bench


class Gate:
    """A handler that waits until it is opened, and counts."""

    def __init__(self) -> None:
        self.open, self.running = asyncio.Event(), 0

    def handler(self) -> Any:
        async def charge(customer_id: int) -> None:
            self.running += 1 + 0 * customer_id
            await self.open.wait()
            self.running -= 1

        return charge


async def _submit(bench: Bench, number: int, **options: Any) -> list[str]:
    return [await bench.submit("charge", {"customer_id": 1}, **options) for _ in range(number)]


async def test_a_live_limit_holds_for_a_type_and_can_be_raised(bench: Bench, client: Client) -> None:
    gate = Gate()
    bench.handle(gate.handler())
    await client.controls.limit_fleet("type:charge", Limit(concurrency=2))
    ids = await _submit(bench, 6)
    async with bench.working(concurrency=10):
        await until(lambda: gate.running == 2)
        assert (await bench.stored(ids[-1])).status is Status.PENDING
        await client.controls.limit_fleet("type:charge", Limit(concurrency=4))
        await until(lambda: gate.running == 4)
        await client.controls.limit_fleet("type:charge", None)
        await until(lambda: gate.running == 6)
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)


async def test_a_limit_of_a_queue_leaves_other_queues_alone(bench: Bench, client: Client) -> None:
    gate = Gate()
    bench.handle(gate.handler())
    await client.controls.limit_fleet("queue:mail", Limit(concurrency=1))
    ids = await _submit(bench, 3, queue="mail") + await _submit(bench, 3)
    async with bench.working(concurrency=10):
        await until(lambda: gate.running == 4)
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)


async def test_a_limit_of_one_value_goes_before_that_of_the_type(bench: Bench, client: Client) -> None:
    gate, limit = Gate(), qo.Limit(concurrency=5, key="customer_id")
    bench.handle(gate.handler(), limit=limit)
    await client.controls.limit_fleet("key:customer_id=1", Limit(concurrency=1))
    ids = await _submit(bench, 4, limit=limit)
    async with bench.working(concurrency=10):
        await until(lambda: gate.running == 1)
        explained = await client.explain(ids[-1])
        assert "it waits for a slot of customer_id=1 (1 of 1 running)" in explained.text
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)


async def test_limits_are_shown_with_who_holds_their_slots(bench: Bench, client: Client) -> None:
    gate, limit = Gate(), qo.Limit(concurrency=2, rate=1000, key="customer_id")
    bench.handle(gate.handler(), limit=limit)
    await client.controls.limit_fleet("queue:mail", Limit(rate=5, per=60))
    ids = await _submit(bench, 5, limit=limit)
    async with bench.working(concurrency=10) as worker:
        await until(lambda: gate.running == 2)
        statuses = await limit_statuses(client.engine, await client.controls.read(), await client.engine.count())
        assert [status.scope for status in statuses] == ["type:charge", "queue:mail"]
        charge, mail = statuses
        assert (charge.waiting, charge.is_live, mail.is_live) == (3, False, True)
        assert charge.numbers == "at most 2 at once and 1,000 starts in 1 s for each customer_id"
        assert mail.numbers == "at most 5 starts in 60 s"
        (group,) = charge.groups
        assert (group.group, group.running) == ("customer_id=1", 2)
        assert {holder.worker_id for holder in group.holders} == {worker.id}
        assert {holder.task_id for holder in group.holders} == set(ids[:2])
        assert await repair_limits(client.engine, await client.engine.now()) == 0
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)
