"""`qo workflow`: list, show, cancel and replay."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import qo
from qo.client import connect
from qo.client.changes_by_id import PAGE_SIZE
from qo.engines.sqlite import SqliteEngine
from qo.errors import StorageError
from qo.model import Change, WorkflowGraph
from qo.testing.workflow_histories import planned


async def submitted(url: str) -> WorkflowGraph:
    async with connect(url) as client:
        return (await client.workflows.submit("import", [planned(), planned(0), planned(0, 1)])).graph


async def fail_first(url: str) -> None:
    async with connect(url, qo.Settings()) as client:
        (task,) = await client.dequeue("t")
        for _ in range(task.max_retries + 1):
            await client.nack(task, "no luck", delay=0)
            (task,) = await client.dequeue("t") or [task]


def work(call: Any, coroutine: Any) -> Any:
    return asyncio.run(coroutine(call.url))


def test_a_workflow_is_drawn_with_the_state_of_each_task(call: Any) -> None:
    graph = work(call, submitted)
    shown = call("workflow", "show", graph.id).output.splitlines()
    assert shown[0] == f"{graph.id} running  1 pending, 2 blocked"
    assert shown[1:] == [
        "0 t pending",
        "└─ 1 t blocked  waits for 1 of 1 task",
        "   └─ 2 t blocked  after 0  waits for 2 of 2 tasks",
    ]
    document = call.json("workflow", "show", graph.id)
    assert [node["parents"] for node in document["nodes"]] == [[], [0], [0, 1]]
    assert "waiting for 1 of 1 task of its workflow" in call("explain", graph.task_id(1)).output
    assert "when its parent tasks have completed" in call("status", graph.task_id(1)).output
    assert "waits for its parent tasks" in call("history", graph.task_id(1)).output


def test_a_workflow_is_listed_cancelled_and_replayed(call: Any) -> None:
    call.submit("other")
    assert "no workflows" in call("workflow", "list").output
    graph = work(call, submitted)
    (listed,) = call.json("workflow", "list")["workflows"]
    assert (listed["id"], listed["status"], listed["total"]) == (graph.id, "running", 3)
    assert graph.id in call("workflow", "list").output
    assert call("workflow", "cancel", graph.id).output.strip() == f"cancelled 3 tasks of {graph.id}"
    assert call.json("workflow", "replay", graph.id) == {"id": graph.id, "replayed": 3}
    work(call, fail_first)
    assert "failed" in call("workflow", "show", graph.id).output
    assert call.json("workflow", "replay", graph.id, "--from", "0")["replayed"] == 3
    recorded = [(each["action"], each["target"], each["number"]) for each in call.json("audit")["records"]]
    replayed = ("workflow.replay", f"workflow {graph.id}", 3)
    assert recorded == [replayed, replayed, ("workflow.cancel", f"workflow {graph.id}", 3)]


def test_what_was_cancelled_is_recorded_although_the_store_goes_away(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit_many(url: str) -> WorkflowGraph:
        async with connect(url) as client:
            return (await client.workflows.submit("import", [planned() for _ in range(PAGE_SIZE + 1)])).graph

    graph = work(call, submit_many)
    first, apply = graph.task_id(0), SqliteEngine.apply

    async def go_away(engine: SqliteEngine, changes: Sequence[Change]) -> list[bool]:
        if any(change.id == first for change in changes):  # it is cancelled last
            raise StorageError("away")
        return await apply(engine, changes)

    with monkeypatch.context() as patched:
        patched.setattr(SqliteEngine, "apply", go_away)
        call("workflow", "cancel", graph.id, code=5)
    (record,) = call.json("audit")["records"]
    assert (record["action"], record["number"]) == ("workflow.cancel", PAGE_SIZE)
    assert call.json("workflow", "cancel", graph.id)["cancelled"] == 1


def test_mistakes_have_their_exit_codes(call: Any) -> None:
    graph = work(call, submitted)
    assert "there is no workflow" in call.error("workflow", "show", "nothing", code=3)["error"]
    assert "has no task '9x'" in call.error("workflow", "replay", graph.id, "--from", "9x", code=2)["error"]
    assert "failed or was cancelled" in call.error("workflow", "replay", graph.id, code=4)["error"]
