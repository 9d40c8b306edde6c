"""Actions of /api/v1 on all tasks that match a filter."""

from typing import Any

import pytest

from qo.audit import read_audit
from qo.client import Client
from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.model import Status, complete, fail
from qo.testing.samples import claim_one
from tests.web.serving import in_process

V1 = "/api/v1/tasks"


@pytest.fixture
def client() -> Client:
    return Client(MemoryEngine())


async def post(client: Client, action: str, body: dict[str, Any]) -> Any:
    async with in_process(client) as api:
        answer = await api.post(f"{V1}/{action}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def statuses(client: Client) -> dict[str, int]:
    counts = await client.engine.count()
    return {status.value: number for status in Status if (number := _sum(counts, status))}


def _sum(counts: Any, status: Status) -> int:
    return sum(number for key, number in counts.items() if key.status is status)


async def test_queued_and_executing_tasks_are_cancelled(client: Client) -> None:
    await client.enqueue("t", batch="b")
    running = await claim_one(client.engine)
    for type_, batch in (("t", "b"), ("t", None), ("u", "b")):
        await client.enqueue(type_, batch=batch)
    assert await post(client, "cancel", {"type": ["t"], "batch": "b"}) == {"changed": 2, "more": False}
    assert await statuses(client) == {"pending": 2, "cancelled": 2}
    assert await client.engine.apply([complete(running)]) == [False]
    (record,) = (await read_audit(client.engine, now=system_clock(), limit=9)).records
    assert (record.action, record.target, record.number) == ("cancel", "type t, batch b", 2)


async def test_ended_tasks_are_archived_and_deleted(client: Client) -> None:
    for n in range(3):
        await client.enqueue("t", max_retries=0)
        task = await claim_one(client.engine)
        await client.engine.apply([complete(task) if n else fail(task, "no")])
    await client.enqueue("t")
    assert await post(client, "archive", {"status": ["dead_letter"]}) == {"changed": 1, "more": False}
    some = await post(client, "delete", {"type": ["t"], "limit": 1})
    assert (some["changed"], some["more"]) == (1, True)
    assert await statuses(client) == {"pending": 1, "completed": 1, "archived": 1}
    assert await post(client, "delete", {"status": ["queued", "completed"]}) == {"changed": 1, "more": False}
    assert await statuses(client) == {"pending": 1, "archived": 1}
    records = (await read_audit(client.engine, now=system_clock(), limit=9)).records
    assert [each.action for each in reversed(records)] == ["archive", "delete", "delete"]


async def test_queued_tasks_run_now_at_another_time_or_earlier(client: Client) -> None:
    due = await client.enqueue("t")
    later = [await client.enqueue("t", delay=3600, queue=queue) for queue in ("a", "b")]
    assert (await post(client, "run-now", {"queue": ["a"]}))["changed"] == 1
    assert (await post(client, "run-now", {"status": ["queued"]}))["changed"] == 1, "a task that is due keeps its place"
    moved = await post(client, "reschedule", {"queue": ["b"], "delay_seconds": 60})
    assert moved == {"changed": 1, "more": False}
    found = await client.engine.get([later[1].id])
    assert found[0] is not None
    assert 50 < found[0].available_at - system_clock() <= 60
    some = await post(client, "priority", {"type": ["t"], "priority": "high", "limit": 2})
    assert (some["changed"], some["more"]) == (2, True)
    assert (await post(client, "priority", {"priority": 0, "status": ["executing"]}))["changed"] == 0
    tasks = await client.engine.get([due.id, *(each.id for each in later)])
    assert sorted(task.priority for task in tasks if task is not None) == [0, 0, 6]


@pytest.mark.parametrize(
    "action",
    [("priority", {"type": ["t"], "priority": 0}), ("reschedule", {"status": ["queued"], "delay_seconds": 60})],
)
async def test_repeated_requests_reach_every_task_that_still_matches(
    client: Client, action: tuple[str, dict[str, Any]]
) -> None:
    name, body = action
    ids = [(await client.enqueue("t")).id for _ in range(5)]
    done: dict[str, Any] = {"next": "", "more": True}
    changed = []
    while done["more"]:
        done = await post(client, name, body | {"limit": 2, "after": done["next"]})
        changed.append(done["changed"])
    assert changed == [2, 2, 1]
    assert {task.version for task in await client.engine.get(ids) if task is not None} == {2}


async def test_an_empty_list_of_statuses_replays_what_a_missing_one_does(client: Client) -> None:
    for change in (lambda task: fail(task, "no"), complete):
        await client.enqueue("t", max_retries=0)
        await client.engine.apply([change(await claim_one(client.engine))])
    assert await post(client, "replay", {"status": [], "limit": 1}) == {"replayed": 1, "more": False}
    assert await statuses(client) == {"pending": 1, "completed": 1}


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("cancel", {}, "status"),
        ("delete", {}, "status"),
        ("archive", {}, "status"),
        ("run-now", {}, "status"),
        ("reschedule", {"delay_seconds": 60}, "status"),
        ("priority", {"priority": 0, "limit": 1}, "status"),
        ("delete", {"limit": 10_001}, "limit"),
        ("cancel", {"statuses": ["queued"]}, "statuses"),
        ("cancel", {"batch": "a b"}, "batch"),
        ("archive", {"queue": ["a b"]}, "queue"),
        ("reschedule", {}, "run_at"),
        ("reschedule", {"run_at": "tomorrow"}, "run_at"),
        ("reschedule", {"run_at": "2100-01-01", "delay_seconds": 1}, "run_at"),
        ("priority", {"priority": 10}, "priority"),
        ("priority", {}, "priority"),
    ],
)
async def test_a_wrong_request_changes_nothing_and_names_the_field(
    client: Client, action: str, body: dict[str, Any], field: str
) -> None:
    await client.enqueue("t")
    async with in_process(client) as api:
        answer = await api.post(f"{V1}/{action}", json=body)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert await statuses(client) == {"pending": 1}
