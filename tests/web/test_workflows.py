"""Workflows over /api/v1, and for workers that poll over HTTP."""

from collections.abc import Sequence

import pytest

from qo.client import Client
from qo.client.changes_by_id import PAGE_SIZE
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import Change, WorkflowGraph, complete, fail
from qo.testing import ManualClock
from qo.testing.samples import claim_one
from qo.testing.workflow_histories import planned
from tests.web.serving import in_process

WORKFLOWS, WORKERS = "/api/v1/workflows", "/internal/workers"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(clock: ManualClock) -> Client:
    return Client(MemoryEngine(clock), clock=clock)


async def submitted(client: Client, name: str = "import") -> WorkflowGraph:
    return (await client.workflows.submit(name, [planned(), planned(0), planned(0, 1, bound=True)])).graph


async def test_a_workflow_is_shown_with_its_graph_and_live_states(client: Client) -> None:
    graph = await submitted(client)
    await client.engine.apply([complete(await claim_one(client.engine))])
    async with in_process(client) as api:
        shown = (await api.get(f"{WORKFLOWS}/{graph.id}")).json()
    assert (shown["status"], shown["counts"], shown["total"]) == (
        "running", {"completed": 1, "pending": 1, "blocked": 1}, 3,
    )  # fmt: skip
    last = shown["nodes"][2]
    assert (last["parents"], last["waits_for"], last["pending_kind"]) == ([0, 1], [1], "blocked")
    assert [node["task_id"] for node in shown["nodes"]] == graph.task_ids()


async def test_workflows_are_listed_newest_first(client: Client, clock: ManualClock) -> None:
    graphs = []
    for name in ("first", "second"):
        graphs.append(await submitted(client, name))
        clock.advance(1)
    async with in_process(client) as api:
        listed = (await api.get(WORKFLOWS)).json()["workflows"]
        assert len((await api.get(f"{WORKFLOWS}?limit=1")).json()["workflows"]) == 1
    assert [each["id"] for each in listed] == [graph.id for graph in reversed(graphs)]


async def test_a_workflow_is_cancelled_and_replayed(client: Client) -> None:
    graph = await submitted(client)
    async with in_process(client) as api:
        assert (await api.post(f"{WORKFLOWS}/{graph.id}/cancel")).json() == {"id": graph.id, "tasks": 3}
        assert (await api.post(f"{WORKFLOWS}/{graph.id}/cancel")).status_code == 409
        assert (await api.post(f"{WORKFLOWS}/{graph.id}/replay", json={})).json()["tasks"] == 3
        await client.engine.apply([fail(await claim_one(client.engine), "no")])
        assert (await api.post(f"{WORKFLOWS}/{graph.id}/replay", json={"start": [0]})).json()["tasks"] == 3
        await client.engine.apply([complete(await claim_one(client.engine))])
        again = await api.post(f"{WORKFLOWS}/{graph.id}/replay", json={"start": [graph.task_id(0)]})
        assert again.json()["tasks"] == 1, "the others have not ended"


@pytest.mark.parametrize("path", ["nothing", "import-00000000000000000000", "a%2Fb"])
async def test_an_unknown_workflow_is_not_found(client: Client, path: str) -> None:
    async with in_process(client) as api:
        assert (await api.get(f"{WORKFLOWS}/{path}")).status_code == 404
        assert (await api.post(f"{WORKFLOWS}/{path}/cancel")).status_code == 404


async def test_unknown_tasks_of_a_workflow_are_named(client: Client) -> None:
    graph = await submitted(client)
    async with in_process(client) as api:
        answer = await api.post(f"{WORKFLOWS}/{graph.id}/replay", json={"start": [7]})
    assert answer.status_code == 400 and "has no task 7" in answer.json()["error"]


async def test_a_worker_over_http_gets_the_results_of_parents(client: Client) -> None:
    graph = await submitted(client)
    async with in_process(client) as api:
        worker = (await api.post(f"{WORKERS}/register", json={"queues": ["q"], "types": ["t"]})).json()["worker_id"]
        seen = []
        for number in range(3):
            answer = (await api.post(f"{WORKERS}/{worker}/poll", json={"available_capacity": 9})).json()
            (task,) = answer["tasks"]
            seen.append((task["task_id"], task["parameters"]["results"]))
            done = {
                "task_id": task["task_id"], "status": "completed", "result": number,
            }  # fmt: skip
            assert (await api.post(f"{WORKERS}/{worker}/result", json=done)).status_code == 200
    assert seen == [(graph.task_id(0), []), (graph.task_id(1), []), (graph.task_id(2), [0, 1])]


async def test_the_cancelled_part_of_a_workflow_is_recorded_although_the_store_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(MemoryEngine())  # the trail shows records of the last days
    graph = (await client.workflows.submit("import", [planned() for _ in range(PAGE_SIZE + 1)])).graph
    first, apply = graph.task_id(0), client.engine.apply

    async def go_away(changes: Sequence[Change]) -> list[bool]:
        if any(change.id == first for change in changes):  # it is cancelled last
            raise StorageError("away")
        return await apply(changes)

    async with in_process(client) as api:
        with monkeypatch.context() as patched:
            patched.setattr(client.engine, "apply", go_away)
            assert (await api.post(f"{WORKFLOWS}/{graph.id}/cancel")).status_code == 503
        assert (await api.post(f"{WORKFLOWS}/{graph.id}/cancel")).status_code == 200
        recorded = (await api.get("/api/v1/audit")).json()["actions"]
    numbers = [(each["action"], each["number"]) for each in recorded]
    assert numbers == [("workflow.cancel", 1), ("workflow.cancel", PAGE_SIZE)]
