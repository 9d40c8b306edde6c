"""What `/internal/workers` refuses, and its limits."""

from typing import Any

import pytest

from qo import notes
from qo.client import Client
from qo.model import Status
from qo.testing.samples import task_id
from tests.web.http_worker import HttpWorker, stored, worker

__all__ = ["worker"]  # a fixture


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("register", {"capacity": 0}),
        ("register", {"capacity": 10**9}),
        ("register", {"capabilities": ["../etc"]}),
        ("register", {"version": "x" * 100}),
        ("register", []),
        ("W/poll", {"available_capacity": -1}),
        ("W/poll", {"available_capacity": "3"}),
        ("W/poll", {"available_capacity": 1, "wait": -1}),
        ("W/result", {}),
        ("W/result", {"task_id": "x", "status": "completed"}),
        ("W/result", {"task_id": task_id(1), "status": "done"}),
        ("W/result", {"results": [{"task_id": task_id(1), "status": "completed"}] * 1001}),
        ("W/heartbeat", {"status": "asleep"}),
        ("W/heartbeat", {"current_tasks": ["x"]}),
    ],
)
async def test_what_makes_no_sense_is_refused_with_a_sentence(worker: HttpWorker, path: str, body: Any) -> None:
    answer = await worker.post(path.replace("W", worker.id), body, status=400)
    assert answer["error"] and answer["code"] == "invalid"


@pytest.mark.parametrize(
    "value", ["NaN", "1e999", '"\\ud800"', '"\\u0000"', "[" * 200 + "]" * 200, "9" * 30, '{"a":1,"a":2}', "[" * 90_000]
)
async def test_results_no_store_can_keep_are_refused(worker: HttpWorker, client: Client, value: str) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    body = f'{{"task_id":"{task["task_id"]}","status":"completed","result":{value}}}'
    headers = {"Content-Type": "application/json"}
    response = await worker.http.post(f"/internal/workers/{worker.id}/result", content=body, headers=headers)
    assert response.status_code == 400, response.text
    assert (await stored(client, task)).status is Status.RUNNING


async def test_the_lease_is_in_no_error_and_an_unknown_worker_is_told_to_register(
    worker: HttpWorker, client: Client
) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    other = HttpWorker(worker.http)
    await other.register()
    told = await other.post(f"{other.id}/result", {"task_id": task["task_id"], "status": "completed"}, status=409)
    assert task["lease_token"] not in str(told)
    assert "register" in (await worker.post("nobody/poll", {"available_capacity": 1}, status=404))["error"]


async def test_lists_of_names_are_limited(worker: HttpWorker) -> None:
    many = [f"n{n}" for n in range(1001)]
    for field in ("capabilities", "types", "queues"):
        refused = await worker.post("register", {"capabilities": [], "capacity": 5} | {field: many}, status=400)
        assert (refused["field"], refused["error"]) == (field, f"{field}: has 1,001 names, the limit is 1,000")
    refused = await worker.post(f"{worker.id}/poll", {"capabilities": many, "available_capacity": 1}, status=400)
    assert refused["field"] == "capabilities"
    long = [f"{n:0>250}" for n in range(1000)]
    refused = await worker.post("register", {"capabilities": [], "capacity": 5, "types": long}, status=400)
    assert refused["error"] == "types: are too long: a registration can have up to 65,536 bytes"


async def test_so_many_workers_may_register(
    worker: HttpWorker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = worker.id
    monkeypatch.setattr("qo.web.remote.worker_registry.MAX_REGISTERED", 2)
    await worker.register()
    refused = await worker.post("register", {"capabilities": [], "capacity": 5}, status=429)
    assert "2 workers are registered, the limit is 2; workers should report" in refused["error"]
    await client.engine.drop_note(notes.WORKERS + first)
    await worker.register()
