"""The graph of a workflow for the dashboard: boxes, lines, the critical path, and groups for large workflows."""

import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.client.describe import PlannedTask
from qo.engines.memory import MemoryEngine
from qo.model import WorkflowGraph, complete, fail
from qo.testing import ManualClock
from qo.testing.samples import claim_one
from qo.testing.workflow_histories import planned
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.web.serving import in_process

DASHBOARD = "/api/v1/dashboard"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(clock: ManualClock) -> Client:
    return Client(MemoryEngine(clock), clock=clock)


def of_type(name: str, task: PlannedTask) -> PlannedTask:
    return replace(task, node=replace(task.node, type=name), new=replace(task.new, type=name))


async def submitted(client: Client, *tasks: PlannedTask) -> WorkflowGraph:
    return (await client.workflows.submit("import", tasks)).graph


async def drawn(client: Client, graph: WorkflowGraph) -> dict[str, object]:
    async with in_process(client) as api:
        answer = await api.get(f"{DASHBOARD}/workflows/{graph.id}")
    assert answer.status_code == 200, answer.text
    document: dict[str, object] = answer.json()
    return document


async def test_each_task_is_a_box_below_its_parents(client: Client) -> None:
    graph = await submitted(client, planned(), planned(0), planned(0), planned(0, 1), planned(2, 3))
    shown = await drawn(client, graph)
    boxes = shown["boxes"]
    assert isinstance(boxes, list)
    assert [box["layer"] for box in boxes] == [0, 1, 1, 2, 3]
    assert [box["task_id"] for box in boxes] == graph.task_ids()
    assert shown["lines"] == [[0, 1], [0, 2], [0, 3], [1, 3], [2, 4], [3, 4]]
    assert not shown["is_grouped"]


async def test_the_critical_path_is_the_chain_that_takes_longest(client: Client, clock: ManualClock) -> None:
    slow, quick = of_type("slow", planned(0)), of_type("quick", planned(0))
    graph = await submitted(client, planned(), quick, slow, planned(1, 2))
    await client.apply([complete(await claim_one(client.engine))])
    for type, seconds in (("quick", 2), ("slow", 60)):
        task = await claim_one(client.engine, types=(type,))
        clock.advance(seconds)
        await client.apply([complete(task)])
    shown = await drawn(client, graph)
    assert shown["critical_path"] == [0, 2, 3] and shown["is_estimate"]
    assert [row["is_critical"] for row in shown["rows"]] == [True, False, True, True]  # type: ignore[attr-defined]
    assert shown["critical_seconds"] == pytest.approx(60, abs=0.1)


async def test_rows_tell_states_errors_and_what_a_task_waits_for(client: Client) -> None:
    graph = await submitted(client, planned(), planned(), planned(0, 1))
    await client.apply([fail(await claim_one(client.engine), "x" * 5000)])
    rows = (await drawn(client, graph))["rows"]
    assert isinstance(rows, list)
    failed = next(row for row in rows if row["state"] == "failed")
    assert failed["error"] == "x" * 200
    assert rows[2]["state"] == "cancelled"
    assert "failed" in rows[2]["error"]


async def test_a_large_workflow_is_drawn_as_groups_and_the_failed_task_comes_first(client: Client) -> None:
    parts = [of_type("part", planned(0)) for _ in range(500)]
    graph = await submitted(client, planned(), *parts, of_type("merge", planned(*range(1, 501))))
    await client.apply([complete(await claim_one(client.engine))])
    await client.apply([fail(await claim_one(client.engine, types=("part",)), "no")])
    shown = await drawn(client, graph)
    assert shown["is_grouped"] and shown["lines"] == [[0, 1], [1, 2]] and shown["critical_path"] == [0, 1, 2]
    boxes, rows = shown["boxes"], shown["rows"]
    assert isinstance(boxes, list) and isinstance(rows, list)
    assert [(box["layer"], box["type"], box["tasks"]) for box in boxes] == [
        (0, "t", 1),
        (1, "part", 500),
        (2, "merge", 1),
    ]
    assert [box["task_id"] for box in boxes] == [graph.task_id(0), None, graph.task_id(501)]
    assert boxes[1]["states"] == {"pending": 499, "failed": 1}
    assert len(rows) == 50 and rows[0]["state"] == "failed"


async def test_a_long_chain_is_drawn_as_ranges_of_layers(client: Client) -> None:
    graph = await submitted(client, planned(), *(planned(before) for before in range(999)))
    shown = await drawn(client, graph)
    boxes = shown["boxes"]
    assert isinstance(boxes, list)
    assert len(boxes) <= 100 and sum(box["tasks"] for box in boxes) == 1000
    assert [box["layer"] for box in boxes] == list(range(len(boxes)))
    assert shown["lines"] == [[at, at + 1] for at in range(len(boxes) - 1)]


async def test_an_unknown_workflow_is_not_drawn(client: Client) -> None:
    async with in_process(client) as api:
        assert (await api.get(f"{DASHBOARD}/workflows/import-00000000000000000000")).status_code == 404


async def test_a_task_names_its_workflow(client: Client) -> None:
    graph = await submitted(client, planned())
    other = await client.enqueue("t", {}, batch=graph.id)
    async with in_process(client) as api:
        task = (await api.get(f"{DASHBOARD}/tasks/{graph.task_id(0)}")).json()
        assert task["workflow"] == graph.id
        assert (await api.get(f"{DASHBOARD}/tasks/{other.id}")).json()["workflow"] is None


async def test_a_session_shows_whether_it_can_see_and_change_workflows(client: Client) -> None:
    secrets = {
        "reads": await create_token(client.engine, "reads", [Scope.READ], now=0.0),
        "operates": await create_token(client.engine, "operates", [Scope.OPERATE], now=0.0),
        "limited": await create_token(client.engine, "limited", [Scope.OPERATE], now=0.0, queues=["q"]),
    }
    seen = {}
    async with in_process(client, WebSettings()) as api:
        for name, created in secrets.items():
            answer = await api.get(f"{DASHBOARD}/session", headers={"Authorization": f"Bearer {created.secret}"})
            can = answer.json()["can"]
            seen[name] = (can["workflows"], can["change_workflows"])
    assert seen == {"reads": (True, False), "operates": (True, True), "limited": (False, False)}
