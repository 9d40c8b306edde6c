"""Operating on tasks over HTTP: run now, reschedule, priority, replay of completed tasks, and why a task waits."""

from typing import Any

import pytest

from qo.model import NewTask, complete
from qo.testing.samples import claim_one
from tests.web.serving import Served

V1 = "/api/v1/tasks"
MANAGED = "/api/tasks"
ACT = "/api/v1/dashboard/act"


def submit(api: Served, **options: Any) -> str:
    answer = api.client.post(V1, json={"task_type": "report", **options})
    assert answer.is_success, answer.text
    return str(answer.json()["task_id"])


def later(api: Served, *ids: str) -> list[str]:
    ids = ids or (submit(api),)
    for each in ids:
        assert api.client.post(f"{V1}/{each}/reschedule", json={"delay_seconds": 3600}).is_success
    return list(ids)


def shown(api: Served, task_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = api.client.get(f"/api/v1/dashboard/tasks/{task_id}").json()
    return answer


def audited(api: Served) -> list[str]:
    return [each["action"] for each in api.client.get("/api/v1/audit").json()["actions"]]


def test_a_task_is_rescheduled_run_now_and_moved(api: Served) -> None:
    (task_id,) = later(api)
    assert api.client.get(f"{V1}/{task_id}").json()["pending_kind"] == "scheduled"
    assert [each["task_id"] for each in api.client.get(V1, params={"pending": "scheduled"}).json()["tasks"]] == [
        task_id
    ]
    assert api.client.get("/api/v1/queue/stats").json()["pending"]["scheduled"] == 1
    assert api.client.post(f"{V1}/{task_id}/run-now").json() == {"task_id": task_id, "status": "queued"}
    refused = api.client.post(f"{V1}/{task_id}/run-now")
    assert refused.status_code == 409 and "already due" in refused.text
    assert api.client.post(f"{V1}/{task_id}/priority", json={"priority": "high"}).is_success
    assert shown(api, task_id)["priority"] == 0
    at = "2100-01-01T00:00:00Z"
    assert api.client.post(f"{V1}/{task_id}/reschedule", json={"run_at": at}).is_success
    assert shown(api, task_id)["available_at"] == "2100-01-01T00:00:00.000Z"
    assert audited(api)[:4] == ["reschedule", "priority", "run-now", "reschedule"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("reschedule", {}),
        ("reschedule", {"run_at": "soon"}),
        ("reschedule", {"run_at": "9999-12-31T23:59:59-14:00"}),
        ("reschedule", {"run_at": "0001-01-01T00:00:00+14:00"}),
        ("reschedule", {"run_at": "2100-01-01T00:00:00Z", "delay_seconds": 5}),
        ("reschedule", {"delay_seconds": -1}),
        ("priority", {"priority": 10}),
        ("priority", {"priority": "urgent"}),
        ("priority", {}),
    ],
)
def test_bad_times_and_priorities_are_refused(api: Served, path: str, body: dict[str, Any]) -> None:
    answer = api.client.post(f"{V1}/{submit(api)}/{path}", json=body)
    assert answer.status_code == 400 and answer.json()["error"], answer.text


def test_the_management_api_has_the_same_actions(api: Served) -> None:
    (task_id,) = later(api)
    assert api.client.post(f"{MANAGED}/{task_id}/run-now").json()["status"] == "pending"
    assert api.client.post(f"{MANAGED}/{task_id}/run-now").status_code == 400
    assert api.client.post(f"{MANAGED}/{task_id}/priority", json={"priority": 2}).is_success
    assert api.client.post(f"{MANAGED}/{task_id}/reschedule", json={"runAt": "2100-01-01T00:00:00Z"}).is_success
    for bad in ("soon", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        assert api.client.post(f"{MANAGED}/{task_id}/reschedule", json={"runAt": bad}).status_code == 400
    task = shown(api, task_id)
    assert (task["priority"], task["available_at"]) == (2, "2100-01-01T00:00:00.000Z")
    assert audited(api)[:3] == ["reschedule", "priority", "run-now"]


def completed(api: Served) -> str:
    task_id = submit(api)
    assert api.complete(type="report") == task_id
    return task_id


def test_the_management_api_replays_a_completed_task_only_if_requested(api: Served) -> None:
    one, other = completed(api), completed(api)
    assert api.client.post(f"{MANAGED}/{one}/retry").status_code == 400
    assert api.client.post(f"{MANAGED}/{one}/retry", params={"completed": True}).json()["status"] == "pending"
    assert api.client.post(f"{MANAGED}/retry", json={"type": ["report"]}).json()["changed"] == 0
    assert api.client.post(f"{MANAGED}/retry", json={"status": ["completed"]}).json()["changed"] == 1
    assert [shown(api, each)["status"] for each in (one, other)] == ["pending", "pending"]
    assert audited(api)[:2] == ["retry", "retry"]


def test_the_management_api_names_the_reason_of_a_refusal(api: Served) -> None:
    task_id = completed(api)
    for path, body in (("priority", {"priority": 1}), ("reschedule", {"runAt": "2100-01-01T00:00:00Z"})):
        refused = api.client.post(f"{MANAGED}/{task_id}/{path}", json=body)
        assert refused.status_code == 400 and "already due" not in refused.text, refused.text
    (due,) = (submit(api),)
    assert "is already due" in api.client.post(f"{MANAGED}/{due}/run-now").text
    assert "is completed" in api.client.post(f"{MANAGED}/{task_id}/run-now").text


def test_one_task_is_deleted_by_its_id(api: Served) -> None:
    ended, (waits,) = completed(api), later(api)
    refused = api.client.post(f"{V1}/{waits}/delete")
    assert refused.status_code == 409 and "is pending" in refused.text
    assert api.client.post(f"{V1}/{waits}/delete", params={"cancel": True}).status_code == 204
    assert api.client.post(f"{V1}/{ended}/delete").status_code == 204
    assert [api.client.get(f"{V1}/{each}").status_code for each in (ended, waits)] == [404, 404]
    assert api.client.post(f"{V1}/{ended}/delete").status_code == 404
    assert audited(api)[:2] == ["delete", "delete"]


def test_bulk_actions_take_a_filter(api: Served) -> None:
    ids = later(api, submit(api), submit(api))
    ready = submit(api)

    def act(action: str, **more: Any) -> int:
        answer = api.client.post(ACT, json={"action": action, **more})
        assert answer.is_success, answer.text
        return int(answer.json()["done"])

    assert act("run_now", filter={"type": ["report"]}) == 2
    refused = api.client.post(ACT, json={"action": "run_now", "ids": [ready]}).json()["refused"]
    assert refused == [{"id": ready, "why": "the task is already due"}]
    assert act("priority", filter={}, priority=1) == 3
    assert act("reschedule", filter={"status": ["ready"]}, run_at="2100-01-01T00:00:00Z") == 3
    assert api.client.get("/api/v1/dashboard/tasks", params={"status": "scheduled"}).json()["total"] is None
    assert act("cancel_and_delete", ids=ids) == 2
    assert audited(api)[:4] == ["delete", "reschedule", "priority", "run-now"]
    for bad in ({"action": "priority"}, {"action": "replay", "priority": 1}, {"action": "reschedule", "priority": 1}):
        assert api.client.post(ACT, json={**bad, "ids": ids}).status_code == 400
    for at in ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"):
        assert api.client.post(ACT, json={"action": "reschedule", "run_at": at, "ids": [ready]}).status_code == 400


def test_a_completed_task_is_replayed_on_request(api: Served) -> None:
    engine = api.qo_client.engine

    async def completed() -> str:
        new = NewTask(id="0a0a0a0a-0000-8000-8000-000000000000", queue="default", type="report")
        await engine.add([new])
        await engine.apply([complete(await claim_one(engine))])
        return new.id

    task_id = api.run(completed())
    assert api.client.post(f"{V1}/{task_id}/replay").status_code == 409
    assert api.client.post(f"{V1}/replay", json={}).json()["replayed"] == 0
    assert api.client.post(f"{V1}/{task_id}/replay", params={"completed": "true"}).is_success
    api.run(engine.apply([complete(api.run(claim_one(engine)))]))
    assert api.client.post(f"{V1}/replay", json={"status": ["completed"]}).json()["replayed"] == 1


def test_a_task_shows_why_it_is_waiting(api: Served) -> None:
    (task_id,) = later(api)
    api.client.post("/api/v1/controls/pause", json={"queue": "default"})
    answer = api.client.get(f"{V1}/{task_id}/explain").json()
    assert answer["pending_kind"] == "scheduled"
    assert [each["kind"] for each in answer["reasons"]] == ["scheduled", "paused", "no_worker"]
    assert answer["reasons"][1] == {"kind": "paused", "text": "queue default is paused", "is_blocking": True}
    overview = api.client.get("/api/v1/dashboard/overview").json()
    assert overview["pending"] == {"ready": 0, "scheduled": 1, "retrying": 0, "blocked": 0}
    assert 'tasks_pending{kind="scheduled"} 1.0' in api.client.get("/metrics").text
