"""`/internal/workers`, from the worker's side: what docs/http.md promises, and what makes it safe."""

import asyncio

from qo import notes
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.model import Status, cancel, expire
from qo.monitor import Monitor
from qo.stats import add_up
from qo.testing import ManualClock
from qo.testing.samples import task_id
from tests.conditions import delay
from tests.engines.http_server import Server
from tests.web.http_worker import HttpWorker, stored, worker
from tests.web.serving import served as served_app

__all__ = ["worker"]  # a fixture


REQUEST_ID = "0a8ae6c1-1f4c-4c0b-9b8e-0c8e1d1f2a3b"


async def test_the_exchange_of_the_specification(worker: HttpWorker, client: Client) -> None:
    registered = await worker.register(capabilities=["gpu"], capacity=5)
    assert registered.keys() == {"worker_id", "poll_interval_ms"} and registered["poll_interval_ms"] == 1000
    submitted = await client.enqueue("process_video", {"url": "a"}, needs={"gpu"}, timeout=600, trace_id="abc")
    (task,) = await worker.poll(capabilities=["gpu"])
    expected = {
        "task_id": submitted.id,
        "task_type": "process_video",
        "parameters": {"url": "a"},
        "timeout_seconds": 600,
        "trace_id": "abc",
    }
    assert {key: task[key] for key in expected} == expected
    done = {"task_id": task["task_id"], "status": "completed", "result": {"frames": 3}}
    assert (await worker.post(f"{worker.id}/result", done))["acknowledged"] is True
    beat = await worker.post(f"{worker.id}/heartbeat", {"current_load": 0, "status": "active"})
    assert beat["acknowledged"] is True
    assert await client.result(submitted.id) == {"frames": 3}


async def test_capabilities_decide_and_default_to_those_registered(worker: HttpWorker, client: Client) -> None:
    await worker.register(capabilities=["gpu"])
    await client.enqueue("t", needs={"gpu"})
    assert await worker.poll(capabilities=[]) == []
    assert len((await worker.post(f"{worker.id}/poll", {"available_capacity": 1}))["tasks"]) == 1


async def test_a_repeated_poll_gets_the_same_leases(worker: HttpWorker, client: Client, served: Server) -> None:
    for _ in range(4):
        await client.enqueue("t")
    first = await worker.poll(2, request_id=REQUEST_ID)
    assert await worker.poll(2, request_id=REQUEST_ID) == first
    served.app.state.pop("answers")  # another server, or this one restarted: the store still knows
    again = await worker.poll(2, request_id=REQUEST_ID)
    assert sorted(task["lease_token"] for task in again) == sorted(task["lease_token"] for task in first)
    others = await worker.poll(5, request_id=REQUEST_ID[::-1])
    assert not {task["task_id"] for task in others} & {task["task_id"] for task in first}
    await worker.post(f"{worker.id}/poll", {"available_capacity": 1, "request_id": "1"}, status=400)


async def test_polls_repeated_at_once_share_one_claim(worker: HttpWorker, client: Client, served: Server) -> None:
    waiting = [asyncio.create_task(worker.poll(1, request_id=REQUEST_ID, wait=20)) for _ in range(3)]
    await delay(0.05)
    for _ in range(3):
        await served.there(_enqueue(client))
    answers = await asyncio.gather(*waiting)
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 1


async def test_a_poll_waits_for_a_task(worker: HttpWorker, client: Client, served: Server) -> None:
    waiting = asyncio.create_task(worker.poll(1, wait=20))
    await delay(0.05)
    await served.there(_enqueue(client))
    assert len(await asyncio.wait_for(waiting, 10)) == 1


async def _enqueue(client: Client) -> None:
    await client.enqueue("t")


async def test_a_repeated_result_is_answered_with_what_was_recorded(worker: HttpWorker, client: Client) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    first = await worker.tell(task, status="completed", result=1)
    again = await worker.tell(task, status="completed", result=2)
    assert (first["status"], first["repeated"]) == ("completed", False)
    assert (again["status"], again["repeated"]) == ("completed", True)
    assert await client.result(task["task_id"]) == 1
    await worker.tell(task, answer=409, status="failed")


async def test_a_repeated_failure_is_recognised_even_when_the_task_went_on(worker: HttpWorker, client: Client) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    assert (await worker.tell(task, status="failed", error="x", retry_after=0))["status"] == "queued"
    assert (await worker.tell(task, status="failed", error="x", retry_after=0))["repeated"] is True
    (second,) = await worker.poll()
    assert (await worker.tell(task, status="failed", error="x"))["repeated"] is True
    assert (await stored(client, second)).status is Status.RUNNING
    assert (await worker.tell(second, status="completed"))["status"] == "completed"


async def test_a_late_worker_is_refused(worker: HttpWorker, client: Client, clock: ManualClock, served: Server) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    clock.advance(91)
    assert await served.there(client.engine.apply([expire(await stored(client, task), random=0.5, grace=0)])) == [True]
    late = await worker.tell(task, answer=409, status="completed")
    assert "no longer held" in late["error"]
    clock.advance(91)
    other = HttpWorker(worker.http)
    await other.register()
    (second,) = await other.poll()
    assert second["task_id"] == task["task_id"] and second["attempt"] == 2
    await worker.tell(task, answer=409, status="completed")
    without_token = {"task_id": task["task_id"], "status": "completed"}
    await worker.post(f"{worker.id}/result", without_token, status=409)
    assert (await other.tell(second, status="completed", result="ours"))["status"] == "completed"
    assert await client.result(task["task_id"]) == "ours"


async def test_failures_are_retried_by_default(worker: HttpWorker, client: Client) -> None:
    for _ in range(3):
        await client.enqueue("t")
    tasks = await worker.poll(3)
    answers = [
        await worker.tell(tasks[0], status="failed", error={"message": "boom", "retriable": True}),
        await worker.tell(tasks[1], status="failed", error={"message": "boom", "retriable": False}),
        await worker.tell(tasks[2], status="failed", retriable=False),
    ]
    assert [answer["status"] for answer in answers] == ["queued", "failed", "failed"]
    assert (await stored(client, tasks[0])).error == "boom"


async def test_results_come_in_batches_and_are_answered_one_by_one(worker: HttpWorker, client: Client) -> None:
    for _ in range(2):
        await client.enqueue("t")
    one, two = await worker.poll(2)
    results = [
        {"task_id": one["task_id"], "status": "completed", "result": 1, "lease_token": one["lease_token"]},
        {"task_id": two["task_id"], "status": "completed", "lease_token": "another's"},
        {"task_id": task_id(99), "status": "failed"},
    ]
    told = (await worker.post(f"{worker.id}/result", {"results": results}))["results"]
    assert [each.get("code") for each in told] == [None, "lease_lost", "not_found"]
    assert (await stored(client, two)).status is Status.RUNNING


async def test_heartbeats_keep_leases_but_not_beyond_the_time_limit(
    worker: HttpWorker, client: Client, clock: ManualClock
) -> None:
    await client.enqueue("t", timeout=100)
    (task,) = await worker.poll()
    for _ in range(3):
        clock.advance(30)
        await worker.post(f"{worker.id}/heartbeat", {"current_load": 1, "status": "active"})
    renewed = await stored(client, task)
    assert renewed.lease_expires_at == (renewed.started_at or 0) + 100 + 15
    clock.advance(30)
    beat = {"current_load": 1, "current_tasks": [task["task_id"]]}
    assert (await worker.post(f"{worker.id}/heartbeat", beat))["lost"] == [task["task_id"]]
    ended = await stored(client, task)
    assert ended.status is Status.PENDING and ended.error == "timed out after 100 s"


async def test_missed_heartbeats_lose_nothing_as_long_as_the_worker_counts_as_alive(
    worker: HttpWorker, client: Client, clock: ManualClock
) -> None:
    await client.enqueue("t", timeout=600)
    (task,) = await worker.poll()
    assert task["lease_seconds"] == 90
    monitor = Monitor(client, id="m", clock=clock)
    clock.advance(85)  # two heartbeats are missed, the third is late
    assert (await monitor.check_once()).expired == 0
    await worker.post(f"{worker.id}/heartbeat", {"current_load": 1})
    clock.advance(85)
    assert (await monitor.check_once()).expired == 0
    clock.advance(11)
    checked = await Monitor(client, id="n", clock=clock).check_once()
    assert (checked.expired, checked.dead_workers) == (1, 1)  # it is dead when its tasks are lost
    assert ((await stored(client, task)).error or "").startswith("lost: ")


def test_a_short_time_limit_is_enforced_when_it_is_over_and_called_a_timeout() -> None:
    with served_app(MemoryEngine()) as api:
        task_id = api.post("/api/v1/tasks", {"task_type": "t", "timeout_seconds": 0.2, "max_retries": 0}).json()[
            "task_id"
        ]
        worker = api.post("/internal/workers/register", {}).json()["worker_id"]
        (task,) = api.post(f"/internal/workers/{worker}/poll", {"available_capacity": 1}).json()["tasks"]
        ended = api.client.get(f"/api/v1/tasks/{task_id}/result", params={"wait": 20}).json()
        assert ended["status"] == "dead_letter" and "timed out after 0.2 s" in str(ended)
        report = {"task_id": task_id, "status": "completed", "lease_token": task["lease_token"]}
        assert api.post(f"/internal/workers/{worker}/result", report).status_code == 409
        (row,) = add_up(api.run(api.qo_client.activity(60))).values()
        assert row.failed == {"timeout": 1}


async def test_a_heartbeat_response_lists_cancelled_tasks(worker: HttpWorker, client: Client) -> None:
    await client.enqueue("t")
    (task,) = await worker.poll()
    await client.engine.apply([cancel(task["task_id"])])
    beat = {"current_load": 1, "status": "active", "current_tasks": [task["task_id"]]}
    assert (await worker.post(f"{worker.id}/heartbeat", beat))["lost"] == [task["task_id"]]


async def test_controls_are_obeyed(worker: HttpWorker, client: Client, served: Server) -> None:
    await client.enqueue("a")
    await client.enqueue("b")
    await client.controls.pause(types=["a"])
    assert [task["task_type"] for task in await worker.poll()] == ["b"]
    served.app.state.pop("worker_api")  # the controls are remembered for a second
    await client.controls.pause()
    assert await worker.poll() == []
    served.app.state.pop("worker_api")
    await client.controls.resume()
    assert [task["task_type"] for task in await worker.poll()] == ["a"]


async def test_a_draining_worker_gets_nothing_and_a_dead_one_is_forgotten(worker: HttpWorker, client: Client) -> None:
    await client.enqueue("t")
    await worker.post(f"{worker.id}/heartbeat", {"current_load": 0, "status": "draining"})
    assert await worker.poll() == []
    await worker.post(f"{worker.id}/heartbeat", {"current_load": 0, "status": "dead"})
    await worker.post(f"{worker.id}/poll", {"available_capacity": 1}, status=404)
    assert await client.workers() == []


async def test_a_worker_registered_elsewhere_is_known_by_its_note(
    worker: HttpWorker, client: Client, served: Server
) -> None:
    await worker.register(capabilities=["gpu"], types=["t"])
    served.app.state.pop("worker_api")
    await client.enqueue("t", needs={"gpu"})
    assert len((await worker.post(f"{worker.id}/poll", {"available_capacity": 1}))["tasks"]) == 1
    assert "t" in (await notes.read(client.engine, notes.KNOWN_TYPES, notes.KnownTypes)).types
