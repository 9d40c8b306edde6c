"""Tasks of workflows whose type has a limit by key, or takes turns."""

from typing import Any

import qo
from qo.model import NewTask, group_in
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
