"""Batches over /api/v1, and batches and unique tasks in submissions of both APIs."""

from typing import Any

import httpx
import pytest

import qo
from qo.client import Client
from qo.client.batches import new_batch_id
from qo.engines.memory import MemoryEngine
from qo.model import complete, fail
from qo.testing import ManualClock
from qo.testing.samples import claim_one
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.web.serving import in_process

V1, MANAGED = "/api/v1/tasks", "/api/tasks"
NEW: dict[str, Any] = {"task_type": "t", "parameters": {"customer": 1, "n": 1}}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(clock: ManualClock) -> Client:
    return Client(MemoryEngine(clock), clock=clock)


async def submit(api: httpx.AsyncClient, **more: Any) -> httpx.Response:
    return await api.post(V1, json=NEW | more)


async def test_a_batch_has_counts_a_share_and_an_estimate(client: Client, clock: ManualClock) -> None:
    async with in_process(client) as api:
        for n in range(4):
            assert (await submit(api, batch="b", parameters={"n": n})).status_code == 201
        for n in range(2):
            task = await claim_one(client.engine)
            clock.advance(2)
            await client.engine.apply([fail(task, "no") if n else complete(task)])
        await claim_one(client.engine)
        shown = (await api.get("/api/v1/batches/b")).json()
        assert shown == {
            "id": "b", "total": 4, "pending": 1, "running": 1, "completed": 1, "failed": 1, "cancelled": 0,
            "archived": 0, "done": 2, "fraction": 0.5, "eta": 4.0,
        }  # fmt: skip


async def test_batches_are_listed_newest_first(client: Client, clock: ManualClock) -> None:
    async with in_process(client) as api:
        for name in ("old", "new"):
            await submit(api, batch=name)
            clock.advance(1)
        listed = (await api.get("/api/v1/batches")).json()["batches"]
        assert [(each["id"], each["total"], each["eta"]) for each in listed] == [("new", 1, None), ("old", 1, None)]
        assert len((await api.get("/api/v1/batches?limit=1")).json()["batches"]) == 1
        assert (await api.get("/api/v1/batches?limit=0")).status_code == 400


async def test_a_name_means_its_newest_batch(client: Client, clock: ManualClock) -> None:
    old, new = new_batch_id("thumbnails"), new_batch_id("thumbnails")
    async with in_process(client) as api:
        for batch in (old, new, "thumbnails-large"):
            await submit(api, batch=batch)
            clock.advance(1)
        assert (await api.get("/api/v1/batches/thumbnails")).json()["id"] == new
        assert (await api.get(f"/api/v1/batches/{old}")).json()["id"] == old


@pytest.mark.parametrize("name", ["nothing", "a%20b", "-", "x" * 200])
async def test_an_unknown_batch_is_not_found(client: Client, name: str) -> None:
    async with in_process(client) as api:
        answer = await api.get(f"/api/v1/batches/{name}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_limited_token_counts_its_own_tasks(client: Client) -> None:
    for queue in ("mine", "mine", "secret"):
        await client.enqueue("t", queue=queue, batch="shared")
    await client.enqueue("t", queue="secret", batch="secret")
    token = await create_token(client.engine, "limited", [Scope.READ], queues=["mine"], now=0.0)
    async with in_process(client, WebSettings(token_required=True)) as api:
        api.headers["authorization"] = f"Bearer {token.secret}"
        assert (await api.get("/api/v1/batches/shared")).json()["total"] == 2
        assert [each["id"] for each in (await api.get("/api/v1/batches")).json()["batches"]] == ["shared"]
        assert (await api.get("/api/v1/batches/secret")).status_code == 404
        page = (await api.get("/api/v1/dashboard/tasks?batch=shared")).json()
        assert page["total"] == len(page["tasks"]) == 2


async def test_tasks_are_filtered_by_their_batch(client: Client) -> None:
    async with in_process(client) as api:
        bulk = {"tasks": [NEW | {"batch": "b"}, NEW | {"batch": "b"}, NEW | {"batch": "c"}]}
        made = (await api.post(f"{V1}/bulk", json=bulk)).json()["tasks"]
        ids = {each["task_id"] for each in made[:2]}
        assert {each["task_id"] for each in (await api.get(f"{V1}?batch=b")).json()["tasks"]} == ids
        page = (await api.get("/api/v1/dashboard/tasks?batch=b")).json()
        assert ({each["id"] for each in page["tasks"]}, page["total"]) == (ids, 2)
        act = {"action": "cancel", "filter": {"batch": "b"}}
        assert (await api.post("/api/v1/dashboard/act", json=act)).json()["done"] == 2
        assert (await api.get("/api/v1/batches/c")).json()["pending"] == 1
        for path in (f"{V1}?batch=a%20b", "/api/v1/dashboard/tasks?batch=a%20b"):
            assert (await api.get(path)).json()["field"] == "batch"


async def test_unique_arguments_are_submitted_once(client: Client) -> None:
    unique = {"by": ["customer"], "within_seconds": 60, "on_duplicate": "replace"}
    async with in_process(client) as api:
        first = await submit(api, unique=unique)
        again = await submit(api, unique=unique, parameters={"customer": 1, "n": 2})
        assert (first.status_code, again.status_code) == (201, 200)
        task_id = first.json()["task_id"]
        assert again.json()["task_id"] == task_id
        assert (await api.get(f"{V1}/{task_id}")).json()["payload"]["parameters"] == {"customer": 1, "n": 2}
        bulk = {"tasks": [NEW | {"unique": unique}, NEW | {"unique": {}, "parameters": {"other": 1}}]}
        answer = (await api.post(f"{V1}/bulk", json=bulk)).json()
        assert (answer["new"], answer["tasks"][0]["task_id"]) == (1, task_id)
        refused = await submit(api, unique={"by": ["customer"], "on_duplicate": "raise"})
        assert (refused.status_code, refused.json()["code"]) == (409, "key_reused")


async def test_the_management_api_has_both_options(client: Client) -> None:
    options = {"batch": "b", "unique": {"by": ["customer"], "withinSeconds": 60, "onDuplicate": "keep"}}
    async with in_process(client) as api:
        made = [
            (await api.post(MANAGED, json={"type": "t", "payload": {"customer": 1, "n": n}, "options": options})).json()
            for n in range(2)
        ]
        assert made[0]["id"] == made[1]["id"]
        assert (await api.get("/api/v1/batches/b")).json()["total"] == 1


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"batch": "a b"}, "batch"),
        ({"batch": 5}, "batch"),
        ({"unique": {"by": []}}, "unique.by"),
        ({"unique": {"by": ["absent"]}}, "unique.by"),
        ({"unique": {"by": "some"}}, "unique.by"),
        ({"unique": {"within_seconds": 0}}, "unique.within_seconds"),
        ({"unique": {"until": "later"}}, "unique.until"),
        ({"unique": {"on_duplicate": "drop"}}, "unique.on_duplicate"),
        ({"unique": {"colour": "red"}}, "unique.colour"),
        ({"unique": {}, "idempotency_key": "k"}, "unique"),
    ],
)
async def test_a_wrong_option_is_refused_by_its_name(client: Client, more: dict[str, Any], field: str) -> None:
    async with in_process(client) as api:
        answer = await submit(api, **more)
        assert (answer.status_code, answer.json()["field"]) == (400, field)
        bulk = await api.post(f"{V1}/bulk", json={"tasks": [NEW, NEW | more]})
        assert (bulk.status_code, bulk.json()["field"]) == (400, f"tasks[1].{field}")


async def test_a_token_that_cannot_read_does_not_learn_of_unique_tasks_of_others(client: Client) -> None:
    others = await client.enqueue("t", {"customer": 1}, unique=qo.Unique())
    token = await create_token(client.engine, "producer", [Scope.SUBMIT], now=0.0)
    async with in_process(client, WebSettings(token_required=True)) as api:
        api.headers["authorization"] = f"Bearer {token.secret}"
        made = (await submit(api, parameters={"customer": 1}, unique={})).json()
        again = (await submit(api, parameters={"customer": 1}, unique={})).json()
        assert made["task_id"] == again["task_id"] != others.id
        managed = {"type": "t", "payload": {"customer": 1}, "options": {"unique": {}}}
        assert (await api.post(MANAGED, json=managed)).json()["id"] == made["task_id"]


@pytest.mark.parametrize("scopes", [[Scope.SUBMIT], [Scope.READ, Scope.SUBMIT], [Scope.OPERATE, Scope.SUBMIT]])
async def test_only_a_token_that_operates_replaces_the_tasks_of_others(client: Client, scopes: list[Scope]) -> None:
    others = await client.enqueue("t", {"customer": 1, "n": 0}, unique=qo.Unique(by=("customer",)))
    token = await create_token(client.engine, "producer", scopes, now=0.0)
    unique = {"by": ["customer"], "on_duplicate": "replace"}
    async with in_process(client, WebSettings(token_required=True)) as api:
        api.headers["authorization"] = f"Bearer {token.secret}"
        made = [(await submit(api, parameters={"customer": 1, "n": n}, unique=unique)).json() for n in (1, 2)]
        options = {"unique": {"by": ["customer"], "onDuplicate": "replace"}}
        managed = await api.post(MANAGED, json={"type": "t", "payload": {"customer": 1, "n": 3}, "options": options})
    ids = {*(each["task_id"] for each in made), managed.json()["id"]}
    assert len(ids) == 1, "it replaces its own"
    (task,) = await client.engine.get([others.id])
    assert task is not None
    assert (ids == {others.id}, task.payload != b'{"customer":1,"n":0}') == (Scope.OPERATE in scopes,) * 2
