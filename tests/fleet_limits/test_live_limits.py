"""Limits that are set at run time: they replace those of the code, and are shown with who holds their slots."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import qo
from qo import notes
from qo.client import Client
from qo.controls import MAX_FLEET_LIMITS
from qo.errors import InvalidTask
from qo.fleet_limits.known_limit import repair_limits
from qo.fleet_limits.limit_state import Holder, LimitState
from qo.fleet_limits.limit_status import MAX_GROUPS, limit_statuses
from qo.fleet_limits.rules import declare_limits, state_note
from qo.model import ANY, Limit, Status
from qo.testing.samples import task_id
from tests.conditions import until
from tests.worker.bench import Bench


class Gate:
    """A handler that waits until it is opened, and counts."""

    def __init__(self) -> None:
        self.open, self.running = asyncio.Event(), 0
        self.customers: list[int] = []  # in the order of the starts

    def handler(self) -> Any:
        async def charge(customer_id: int) -> None:
            self.running += 1
            self.customers.append(customer_id)
            await self.open.wait()
            self.running -= 1

        return charge


async def _submit(bench: Bench, number: int, **options: Any) -> list[str]:
    return [await bench.submit("charge", {"customer_id": 1}, **options) for _ in range(number)]


async def _says(client: Client, task_id: str, *reasons: str) -> bool:
    """A claim may take a task before its limit refuses it. Until the task is back, the explanation names the worker."""
    explained = (await client.explain(task_id)).text
    return all(reason in explained for reason in reasons)


async def test_a_live_limit_holds_for_a_type_and_can_be_raised(bench: Bench, client: Client) -> None:
    gate = Gate()
    bench.handle(gate.handler())
    await client.controls.limit_fleet("type:charge", Limit(concurrency=2))
    ids = await _submit(bench, 6)
    async with bench.working(concurrency=10):
        await until(lambda: gate.running == 2)
        await bench.has_status(ids[-1], Status.PENDING)
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
        await until(_says, client, ids[-1], "waiting for a slot of customer_id=1 (1 of 1 running)")
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)


async def test_a_limit_of_one_value_applies_in_addition_to_a_limit_without_a_key(bench: Bench, client: Client) -> None:
    gate = Gate()
    bench.handle(gate.handler(), limit=qo.Limit(concurrency=3))
    await client.controls.limit_fleet("key:customer_id=1", Limit(concurrency=2))
    ids = await _submit(bench, 4) + [await bench.submit("charge", {"customer_id": n}) for n in (2, 3, 4)]
    async with bench.working(concurrency=10):
        await until(lambda: gate.running == 3)  # of the type
        assert gate.customers == [1, 1, 2]  # two of the value, and one other
        reasons = ["type charge (3 of 3 running)", "customer_id=1 (2 of 2 running)"]
        await until(_says, client, ids[2], *(f"waiting for a slot of {reason}" for reason in reasons))
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
        for task_id in ids[2:]:
            await bench.has_status(task_id, Status.PENDING)
        statuses = await limit_statuses(client.engine, await client.controls.read())
        assert [status.scope for status in statuses] == ["type:charge", "queue:mail"]
        charge, mail = statuses
        assert (charge.waiting, charge.is_live, mail.is_live) == (3, False, True)
        assert (charge.group_count, charge.is_exact) == (1, True)
        assert charge.numbers == "at most 2 at a time and 1,000 starts in 1 s for each customer_id"
        assert mail.numbers == "at most 5 starts in 60 s"
        (group,) = charge.groups
        assert (group.group, group.running, group.concurrency, group.waiting) == ("customer_id=1", 2, 2, 3)
        assert group.waits_for == ("a slot of customer_id=1 (2 of 2 running)",)
        assert {holder.worker_id for holder in group.holders} == {worker.id}
        assert {holder.task_id for holder in group.holders} == set(ids[:2])
        assert await repair_limits(client.engine, await client.engine.now()) == 0
        gate.open.set()
        for task_id in ids:
            await bench.ended(task_id)


async def test_the_numbers_of_groups_are_lower_bounds_while_the_groups_of_some_tasks_are_not_stored(
    bench: Bench, client: Client
) -> None:
    limit = qo.Limit(concurrency=1, key="customer_id")
    await declare_limits(client.engine, {"charge": limit, "ship": limit}, {})
    await client.controls.limit_fleet("key:customer_id=1", Limit(concurrency=1))
    await bench.submit("ship", {"customer_id": 1}, limit=limit)
    await _submit(bench, 2, limit=limit)
    assert await _waiting(client) == {"type:charge": (2, True), "type:ship": (1, True), "key:customer_id=1": (3, True)}
    await _submit(bench, 3)  # by code that does not know the key
    assert await _waiting(client) == {
        "type:charge": (2, False),
        "type:ship": (1, True),
        "key:customer_id=1": (3, False),  # a task of any type may have the argument
    }


async def _waiting(client: Client) -> dict[str, tuple[int, bool]]:
    statuses = await limit_statuses(client.engine, await client.controls.read())
    return {each.scope: (sum(group.waiting for group in each.groups), each.is_exact) for each in statuses}


async def test_the_groups_with_most_waiting_and_running_tasks_are_shown(client: Client) -> None:
    limit = qo.Limit(concurrency=5, key="customer_id")
    await declare_limits(client.engine, {"charge": limit}, {})
    holders = {f"customer_id={n}": {task_id(n): Holder(1, "w1")} for n in range(3 * MAX_GROUPS)}
    holders["customer_id=99"] |= {task_id(1000): Holder(1, "w1")}
    state = LimitState(scope="type:charge", holders=holders)
    await client.engine.write_note(state_note("type:charge"), msgspec.json.encode(state), expected=ANY)
    await client.submit(client.new_task("charge", b'{"customer_id": 1000}', limit=limit))
    (status,) = await limit_statuses(client.engine, await client.controls.read())
    assert (len(status.groups), status.group_count) == (MAX_GROUPS, 3 * MAX_GROUPS + 1)
    busiest = [(group.name, group.waiting, group.running) for group in status.groups[:3]]
    assert busiest == [("customer_id=1000", 1, 0), ("customer_id=99", 0, 2), ("customer_id=0", 0, 1)]


async def test_a_store_has_a_maximum_number_of_live_limits(client: Client) -> None:
    full = {f"key:customer={number}": Limit(concurrency=1) for number in range(MAX_FLEET_LIMITS)}
    await notes.change(client.engine, notes.CONTROL, notes.Controls, lambda now: replace(now, limits=full))
    with pytest.raises(InvalidTask, match="already has 1,000 limits"):
        await client.controls.limit_fleet("key:customer=new", Limit(concurrency=1))
    changed = await client.controls.limit_fleet("key:customer=7", Limit(concurrency=2))
    assert (len(changed.limits), changed.limits["key:customer=7"].concurrency) == (MAX_FLEET_LIMITS, 2)
    await client.controls.limit_fleet("key:customer=8", None)
    assert "key:customer=new" in (await client.controls.limit_fleet("key:customer=new", Limit(rate=1))).limits
