"""Workflows: the list, the graph with live states, replaying and cancelling, and the way from a task."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from playwright.sync_api import Locator, expect

import qo
from qo.client.describe import PlannedTask
from qo.model import GraphNode, NewTask, WorkflowGraph
from qo.testing.samples import task_id
from tests.dashboard.place import Place
from tests.dashboard.seen import Seen


def step(type: str, *parents: int, **payload: Any) -> PlannedTask:
    new = NewTask(id=task_id(0), queue="default", type=type, payload=msgspec.json.encode(payload), max_retries=0)
    return PlannedTask(node=GraphNode(type=type, parents=parents), new=new)


def submit(queue: Place, name: str, *steps: PlannedTask) -> WorkflowGraph:
    async def submitted() -> WorkflowGraph:
        async with qo.connect(queue.store) as client:
            return (await client.workflows.submit(name, steps)).graph

    with ThreadPoolExecutor(1) as beside:  # this thread has the browser's loop running
        return beside.submit(asyncio.run, submitted()).result()


def node(seen: Seen, index: int) -> Locator:
    return seen.page.locator(f'[data-box="{index}"]')


def test_a_workflow_is_drawn_with_live_states_and_replayed(seen: Seen):
    file = seen.queue.file("flow-held")
    graph = submit(
        seen.queue,
        "letters",
        step("hold", file=str(file)),
        step("greet", 0, name="Ada"),
        step("explode", 0, reason="no stamps"),
        step("greet", 1, 2),
    )
    seen.go()
    seen.page.keyboard.press("g")
    seen.page.keyboard.press("f")
    expect(seen.page.locator("nav a[aria-current=page]")).to_have_text("Workflows")
    card = seen.page.locator(f'[data-workflow="{graph.id}"]')
    expect(card).to_contain_text("0 of 4 tasks completed")
    card.get_by_role("link", name="letters").click()
    for index, state in enumerate(("running", "blocked", "blocked", "blocked")):
        expect(node(seen, index)).to_have_attribute("data-state", state)
    seen.picture("workflow-running")

    node(seen, 3).click()
    reason = seen.page.locator("[data-reason=blocked]")
    expect(reason).to_contain_text("Waiting for 2 of 2 tasks of its workflow")
    expect(reason.get_by_role("link", name=graph.task_id(1))).to_be_visible()
    expect(seen.page.get_by_role("button", name="Reschedule")).to_have_count(0)
    seen.page.locator("[data-workflow-link]").click()

    file.unlink()
    for index, state in enumerate(("completed", "completed", "failed", "cancelled")):
        expect(node(seen, index)).to_have_attribute("data-state", state)
    expect(seen.page.locator("h1 .badge")).to_have_text("failed")
    expect(seen.page.locator(".flow .edge.critical")).to_have_count(2)
    expect(seen.page.locator('[data-step="2"]')).to_contain_text("ValueError: no stamps")
    seen.picture("workflow-failed")

    seen.page.locator("[data-workflow-action=replay]").click()
    seen.dialog("Replay")
    seen.told("2 tasks replayed.")
    expect(seen.page.locator('[data-step="2"] .number').first).to_have_text("2")
    seen.page.locator('[data-step="0"] [data-workflow-action=replay_from]').click()
    seen.dialog("Replay from here")
    seen.told("4 tasks replayed.")
    expect(seen.page.locator('[data-step="2"] .number').first).to_have_text("3")
    done = seen.queue.client.get("/api/v1/audit", params={"action": "workflow.replay"}).json()["actions"]
    assert [each["target"] for each in done] == [f"workflow {graph.id}"] * 2


def test_a_workflow_is_cancelled_and_replayed_from_the_page_of_a_task(seen: Seen):
    file = seen.queue.file("flow-cancelled")
    graph = submit(seen.queue, "stopped", step("greet"), step("hold", 0, file=str(file)), step("greet", 1))
    seen.go(f"#/workflows/{graph.id}")
    expect(node(seen, 1)).to_have_attribute("data-state", "running")
    seen.page.locator("[data-workflow-action=cancel]").click()
    seen.dialog("Cancel workflow")
    seen.told("2 tasks cancelled.")
    expect(node(seen, 2)).to_have_attribute("data-state", "cancelled")
    expect(seen.page.locator("h1 .badge")).to_have_text("cancelled")
    file.unlink()
    node(seen, 1).click()
    seen.page.locator(".title [data-workflow-action=replay_from]").click()
    seen.dialog("Replay from here")
    seen.queue.until(graph.task_id(2), "completed")
    seen.page.locator("[data-workflow-link]").click()
    expect(seen.page.locator("h1 .badge")).to_have_text("completed")


def test_a_large_workflow_is_drawn_as_groups_that_list_their_tasks(seen: Seen):
    parts = [step("part", 0) for _ in range(400)]
    graph = submit(seen.queue, "many", step("greet"), *parts, step("merge", *range(1, 401)))
    seen.go(f"#/workflows/{graph.id}")
    expect(seen.page.locator(".flow .node")).to_have_count(3)
    expect(seen.page.locator('[data-box="1 part"]')).to_contain_text("0 of 400 tasks")
    seen.picture("workflow-large")
    seen.page.locator('[data-box="1 part"]').click()
    expect(seen.page.locator(".summary").first).to_contain_text("400 tasks")


def test_an_unknown_workflow_is_said_not_to_exist(seen: Seen):
    seen.go("#/workflows/never-00000000000000000000")
    expect(seen.page.locator("[data-state=error]")).to_contain_text("There is no workflow")
