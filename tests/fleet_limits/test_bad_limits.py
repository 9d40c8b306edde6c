"""Limits that mean nothing are refused where they are declared, and nothing is stored."""

from typing import Any

import pytest

import qo
from qo.client import Client
from qo.errors import InvalidTask, QoError
from qo.model import Filter, Limit


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"limit": qo.Limit(concurrency=1, key="nobody")}, "limit.key"),
        ({"limit": qo.Limit(concurrency=1, key="page")}, "limit.key"),  # it has a default
        ({"limit": qo.Limit(concurrency=-1)}, "limit.concurrency"),
        ({"limit": qo.Limit(rate=-1)}, "limit.rate"),
        ({"limit": qo.Limit(rate=1, per=0)}, "limit.per"),
        ({"limit": qo.Limit()}, "limit"),
        ({"limit": 5}, "limit"),
        ({"fair_by": "nobody"}, "fair_by"),
        ({"fair_by": "tenant", "limit": qo.Limit(concurrency=1, key="customer")}, "fair_by"),
    ],
)
def test_a_declaration_names_the_option_that_is_wrong(options: dict[str, Any], named: str) -> None:
    app = qo.App("memory://")

    def render(tenant: str, customer: int, page: int = 1) -> None: ...

    with pytest.raises(QoError, match=rf"^{named}: "):
        app.task(**options)(render)


async def test_a_submission_without_the_argument_is_refused_and_not_stored(client: Client) -> None:
    payloads: tuple[object, ...] = ({}, [1], b"raw", None)
    for payload in payloads:
        with pytest.raises(InvalidTask, match="fair_by"):
            await client.enqueue("render", payload, fair_by="tenant")
    with pytest.raises(InvalidTask, match=r"limit\.key"):
        await client.enqueue("render", {}, limit=qo.Limit(concurrency=1, key="tenant"))
    assert await client.engine.find(Filter(), limit=1) == []


@pytest.mark.parametrize(
    ("scope", "limit"),
    [
        ("nonsense", Limit(concurrency=1)),
        ("type:", Limit(concurrency=1)),
        ("queue:a b", Limit(concurrency=1)),
        ("key:customer", Limit(concurrency=1)),
        ("type:t", Limit(concurrency=-1)),
        ("type:t", Limit(rate=1, per=-1)),
    ],
)
async def test_a_bad_live_limit_is_refused(client: Client, scope: str, limit: Limit) -> None:
    with pytest.raises(InvalidTask):
        await client.controls.limit_fleet(scope, limit)
    assert not (await client.controls.read()).limits


def test_a_task_shows_its_group_and_not_how_it_is_stored() -> None:
    app = qo.App("memory://")

    @app.task(limit=qo.Limit(concurrency=1, key="customer"), needs={"gpu"})
    def render(customer: str) -> None: ...

    task = app.get(render.enqueue("Zoë").id)
    assert task is not None
    assert (task.group, task.needs) == ("customer=Zo%C3%AB", ("gpu",))
    app.close()
