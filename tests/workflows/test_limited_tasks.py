"""Tasks of workflows whose type has a limit by key, or takes turns."""

from typing import Any

import qo
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.fleet_limits.rules import LimitRules
from qo.model import NewTask, complete, group_in, release
from qo.testing.samples import claim
from tests.conditions import TIMEOUT

app = qo.App("memory://")


@app.task
def customer() -> int:
    return 42


@app.task(limit=qo.Limit(concurrency=1, key="customer_id"))
def bill(customer_id: int) -> int:
    return customer_id


@app.task(fair_by="tenant")
def render(tenant: str) -> str:
    return tenant


@app.task
def other(tenant: str) -> str:
    return tenant


def _planned(*signatures: qo.Signature[Any]) -> list[NewTask]:
    return [each.new for each in qo.group(signatures).planned]


def _groups(*signatures: qo.Signature[Any]) -> list[str | None]:
    return [group_in(new.needs) for new in _planned(*signatures)]


def test_a_task_of_a_workflow_belongs_to_the_group_of_its_arguments() -> None:
    assert _groups(bill.s(7), render.s("a"), other.using(fair_by="tenant").s("b"), other.s("c")) == [
        "customer_id=7",
        "tenant=a",
        "tenant=b",
        None,
    ]


def test_the_group_of_a_task_is_open_if_it_depends_on_a_result() -> None:
    flow = app.workflow("bills")
    found = flow.add(customer.s())
    flow.add(bill.s(found))
    flow.add(other.using(limit=qo.Limit(concurrency=1, key="tenant")).s(found))
    assert [group_in(each.new.needs) for each in flow.planned] == [None, None, None]


def test_tasks_with_groups_run() -> None:
    with app.test_mode() as tester:
        flow = app.workflow("bills")
        found = flow.add(customer.s())
        flow.add(bill.s(found))
        flow.add(bill.s(7), after=[found])
        run = flow.submit()
        tester.drain()
        assert run.result(timeout=TIMEOUT) == [42, 7]


async def test_a_task_counts_with_the_result_of_its_replayed_parent() -> None:
    async with Client(MemoryEngine()) as client:
        flow = app.workflow("bills")
        found = flow.add(customer.s())
        flow.add(bill.s(found))
        graph = (await client.workflows.submit("bills", flow.planned)).graph
        parent, child = graph.task_ids()
        rules = LimitRules({bill.handler.type: qo.Limit(concurrency=1, key="customer_id")}, {})
        await _complete(client, customer.handler.type, b"42")
        (task,) = await claim(client.engine, types=(bill.handler.type,))
        assert rules.group(task) == "customer_id=42"
        assert await client.engine.apply([release(task, None, group="customer_id=42")]) == [
            True
        ]  # as a full group does

        await client.workflows.replay(graph.id, [parent])
        await _complete(client, customer.handler.type, b"7")
        (stored,) = await client.engine.get([child])
        assert stored is not None
        assert rules.group(stored) == "customer_id=42"  # its new group is not known before it is claimed
        (task,) = await claim(client.engine, types=(bill.handler.type,), takes_groups=True)
        assert rules.group(task) == "customer_id=7"


async def _complete(client: Client, type: str, result: bytes) -> None:
    (task,) = await claim(client.engine, types=(type,))
    assert await client.engine.apply([complete(task, result)]) == [True]
