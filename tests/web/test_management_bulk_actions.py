"""Actions of /api/tasks on all tasks that match a filter, and its lists of a batch."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from qo.audit import read_audit
from qo.client import Client
from qo.client.batches import BatchReader
from qo.clock import system_clock
from qo.engines.memory import MemoryEngine
from qo.errors import StorageError
from qo.model import Change, Filter, Status, Task
from qo.testing.samples import claim_one, new
from qo.web.management.read import RetryCounts
from tests.web.serving import in_process

MANAGED = "/api/tasks"


@pytest.fixture
def client() -> Client:
    return Client(MemoryEngine())


async def post(client: Client, action: str, body: dict[str, Any]) -> Any:
    async with in_process(client) as api:
        answer = await api.post(f"{MANAGED}/{action}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def one_of_each(client: Client) -> dict[str, str]:
    """A task of each kind in the batch `b`, and a pending one outside of it."""
    ids = {}
    for kind, retries in (("completed", 0), ("failed", 0), ("retrying", 3), ("processing", 0)):
        ids[kind] = (await client.enqueue("t", batch="b", max_retries=retries)).id
        task = await claim_one(client.engine)
        if kind in ("failed", "retrying"):
            await client.nack(task, "no", delay=99)
        elif kind == "completed":
            await client.ack(task)
    ids["pending"] = (await client.enqueue("t", batch="b")).id
    ids["scheduled"] = (await client.enqueue("t", batch="b", delay=3600)).id
    ids["outside"] = (await client.enqueue("t", delay=3600)).id
    return ids


async def read(client: Client, ids: dict[str, str]) -> dict[str, Task]:
    found = await client.engine.get(list(ids.values()))
    return {kind: task for kind, task in zip(ids, found, strict=True) if task is not None}


@pytest.mark.parametrize(
    ("action", "more", "changed"),
    [
        ("retry", {}, {"failed", "retrying"}),
        ("cancel", {}, {"pending", "scheduled", "retrying", "processing"}),
        ("cancel", {"status": ["failed"]}, {"retrying"}),
        ("delete", {}, {"completed", "failed", "retrying"}),
        ("delete", {"status": ["failed", "pending"]}, {"failed", "retrying"}),
        ("run-now", {}, {"scheduled", "retrying"}),
        ("run-now", {"status": ["pending"]}, {"scheduled"}),
        ("reschedule", {"runAt": "2100-01-01T00:00:00Z"}, {"pending", "scheduled", "retrying"}),
        ("priority", {"priority": 0}, {"pending", "scheduled", "retrying"}),
        ("priority", {"priority": 0, "status": ["completed"]}, set()),
    ],
)
async def test_an_action_changes_the_matching_tasks_that_it_can(
    client: Client, action: str, more: dict[str, Any], changed: set[str]
) -> None:
    ids = await one_of_each(client)
    before = await read(client, ids)
    assert await post(client, action, {"batch": "b"} | more) == {"changed": len(changed), "more": False}
    after = await read(client, ids)
    assert {kind for kind in ids if after.get(kind) != before[kind]} == changed
    records = (await read_audit(client.engine, now=system_clock(), limit=9)).records
    assert [(each.action, each.number) for each in records] == ([(action, len(changed))] if changed else [])
    assert all("batch b" in each.target for each in records)


async def test_repeated_requests_reach_every_task_that_still_matches(client: Client) -> None:
    ids = [(await client.enqueue("t")).id for _ in range(5)]
    done: dict[str, Any] = {"next": "", "more": True}
    changed = []
    while done["more"]:
        done = await post(client, "priority", {"type": ["t"], "priority": 0, "limit": 2, "after": done["next"]})
        changed.append(done["changed"])
    assert changed == [2, 2, 1]
    assert {task.version for task in await client.engine.get(ids) if task is not None} == {2}


async def test_a_list_shows_and_counts_one_batch(client: Client) -> None:
    ids = await one_of_each(client)
    async with in_process(client) as api:
        for query, kinds in (
            ("", {"completed", "failed", "retrying", "processing", "pending", "scheduled"}),
            ("&status=failed", {"failed", "retrying"}),
            ("&status=pending", {"pending", "scheduled"}),
            ("&type=other", set()),
        ):
            page = (await api.get(f"{MANAGED}?batch=b{query}")).json()
            assert ({each["id"] for each in page["tasks"]}, page["total"]) == (
                {ids[kind] for kind in kinds},
                len(kinds),
            )
        assert (await api.get(f"{MANAGED}?batch=unknown")).json()["total"] == 0
        assert (await api.get(f"{MANAGED}?batch=a%20b")).json()["field"] == "batch"


async def test_concurrent_lists_of_a_batch_share_the_search_for_waiting_retries() -> None:
    class Searched(MemoryEngine):
        searches = 0

        async def find_without_values(self, where: Filter, **page: Any) -> list[Task]:
            self.searches += 1
            return await super().find_without_values(where, **page)

    engine = Searched()
    await one_of_each(Client(engine))
    counts, reader = RetryCounts(engine), BatchReader(engine)
    found = await asyncio.gather(*(counts.of_batch(reader, "b") for _ in range(5)))
    assert (found, engine.searches) == ([{"t": 1}] * 5, 1)


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("cancel", {}, "status"),
        ("delete", {"limit": 5}, "status"),
        ("run-now", {}, "status"),
        ("reschedule", {"runAt": "2100-01-01"}, "status"),
        ("reschedule", {"type": ["t"], "runAt": "tomorrow"}, "runAt"),
        ("reschedule", {"type": ["t"]}, "runAt"),
        ("priority", {"priority": 1}, "status"),
        ("priority", {"type": ["t"], "priority": 10}, "priority"),
        ("cancel", {"batch": "a b"}, "batch"),
        ("cancel", {"type": ["a b"]}, "type"),
        ("cancel", {"queue": ["q"]}, "queue"),
        ("retry", {"limit": 10_001}, "limit"),
    ],
)
async def test_a_wrong_request_changes_nothing_and_names_the_field(
    client: Client, action: str, body: dict[str, Any], field: str
) -> None:
    made = await client.enqueue("t")
    async with in_process(client) as api:
        answer = await api.post(f"{MANAGED}/{action}", json=body)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
    (task,) = await client.engine.get([made.id])
    assert task is not None
    assert task.version == 1


class Failing(MemoryEngine):
    """Once broken, it deletes nothing, and makes only one change that is not a cancellation."""

    broken = False
    applied = 0

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        if self.broken and changes[0].to is not Status.CANCELLED:
            self.applied += 1
            if self.applied > 1:
                raise StorageError("the store is away")
        return await super().apply(changes)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        if self.broken:
            raise StorageError("the store is away")
        return await super().delete(ids)


@pytest.mark.parametrize("action", ["delete", "run-now"])
async def test_what_a_failed_request_has_changed_is_in_the_audit_trail(action: str) -> None:
    engine = Failing()
    client = Client(engine)
    if action == "delete":
        await one_of_each(client)
    else:
        await engine.add([new(n, queue="default", delay=3600) for n in range(501)])
    async with in_process(client) as api:
        engine.broken = True
        answer = await api.post(f"{MANAGED}/{action}", json={"status": ["failed", "pending"]})
        assert answer.status_code == 503
        engine.broken = False
    (record,) = (await read_audit(engine, now=system_clock(), limit=9)).records
    expected = (0, "unknown") if action == "delete" else (500, "done")
    assert (record.action, record.number, record.outcome) == (action, *expected)
