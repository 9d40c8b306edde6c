"""`/api/tasks`, line by line, over HTTP."""

import uuid
from typing import Any

from tests.web.serving import EVERY_STORE, Served

NOWHERE = "00000000-0000-8000-8000-000000000000"
TASK = {
    "id", "type", "payload", "status", "attempts", "maxAttempts", "lastAttemptAt", "nextRetryAt", "result", "error",
    "failureKind", "runAfter", "createdAt", "updatedAt", "completedAt", "unhandled",
}  # fmt: skip


def create(api: Served, type: str = "send_email", **options: object) -> str:
    answer = api.post("/api/tasks", {"type": type, "payload": {"to": "user@example.com"}, "options": options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def show(api: Served, task_id: str) -> dict[str, Any]:
    answer = api.client.get(f"/api/tasks/{task_id}")
    assert answer.status_code == 200
    task: dict[str, Any] = answer.json()
    return task


# --- POST /api/tasks


def test_create_answers_201_with_id_type_status_and_created_at(api: Served):
    body = {
        "type": "send_email",
        "payload": {"to": "user@example.com", "subject": "Welcome"},
        "options": {"maxAttempts": 3, "runAfter": "2025-01-15T10:00:00Z"},
    }
    answer = api.post("/api/tasks", body)
    assert answer.status_code == 201
    created = answer.json()
    assert created.keys() == {"id", "type", "status", "createdAt"}
    assert created["type"] == "send_email" and created["status"] == "pending"
    assert str(uuid.UUID(created["id"])) == created["id"]


def test_options_may_be_left_out(api: Served):
    answer = api.post("/api/tasks", {"type": "send_email", "payload": None})
    assert answer.status_code == 201
    task = show(api, answer.json()["id"])
    assert task["maxAttempts"] == 3 and task["runAfter"] is None and task["payload"] is None


def test_an_invalid_type_or_payload_is_400(api: Served):
    for body, field in (
        ({"payload": {}}, "type"),
        ({"type": "send_email"}, "payload"),
        ({"type": "", "payload": {}}, "type"),
        ({"type": 5, "payload": {}}, "type"),
        ({"type": "x", "payload": {}, "options": {"maxAttempts": 0}}, "options.maxAttempts"),
        ({"type": "x", "payload": {}, "options": {"maxAttempts": "3"}}, "options.maxAttempts"),
        ({"type": "x", "payload": {}, "options": {"runAfter": "soon"}}, "options.runAfter"),
        ({"type": "x", "payload": {}, "options": {"priority": 3}}, "options.priority"),
        ({"type": "x", "payload": {}, "delay": 3}, "delay"),
    ):
        answer = api.post("/api/tasks", body)
        assert answer.status_code == 400, body
        assert answer.json()["field"] == field, answer.text


def test_a_type_may_look_like_a_path_or_an_address(api: Served):
    for type_ in ("mail/welcome@eu+1", "x" * 255):
        task_id = create(api, type_)
        for path in ("/api/tasks", "/api/v1/tasks"):
            (found,) = api.client.get(path, params={"type": type_}).json()["tasks"]
            assert task_id in found.values()
        assert api.post("/api/v1/controls/pause", {"type": type_}).status_code == 200
        assert api.post("/api/v1/controls/rate-limit", {"type": type_, "tasks_per_second": 2}).status_code == 200
        assert api.client.get("/api/tasks/stats").json()["byType"][type_]["pending"] == 1
        assert show(api, task_id)["type"] == type_


# --- GET /api/tasks/:id


def test_a_task_has_every_field_of_the_spec(api: Served):
    task_id = create(api)
    task = show(api, task_id)
    assert task.keys() == TASK
    assert task["id"] == task_id and task["payload"] == {"to": "user@example.com"}
    assert task["status"] == "pending" and task["attempts"] == 0 and task["maxAttempts"] == 3
    for name in ("lastAttemptAt", "nextRetryAt", "result", "error", "runAfter", "completedAt"):
        assert task[name] is None


def test_a_task_is_processing_then_completed_with_its_result(api: Served):
    task_id = create(api)
    taken = api.take()
    assert show(api, task_id)["status"] == "processing" and show(api, task_id)["attempts"] == 1
    api.run(api.qo_client.ack(taken, {"messageId": "abc123"}))
    task = show(api, task_id)
    assert task["status"] == "completed" and task["attempts"] == 1
    assert task["result"] == {"messageId": "abc123"} and task["error"] is None
    assert task["completedAt"] >= task["lastAttemptAt"] >= task["createdAt"]


def test_a_task_that_failed_shows_when_it_is_retried(api: Served):
    task_id = create(api, maxAttempts=2)
    api.break_down("smtp is down", delay=60)
    task = show(api, task_id)
    assert task["status"] == "failed" and task["attempts"] == 1 and task["error"] == "smtp is down"
    assert task["nextRetryAt"] > task["lastAttemptAt"] and task["runAfter"] is None and task["completedAt"] is None


@EVERY_STORE
def test_a_task_that_waits_for_its_retry_is_listed_and_counted_as_failed(api: Served):
    waiting, fresh, ended = create(api), create(api), create(api, maxAttempts=1)
    api.run(api.qo_client.cancel(ended))
    assert api.break_down(delay=60) == waiting

    def listed(*words: str) -> tuple[set[str], int]:
        page = api.client.get("/api/tasks", params={"status": words}).json()
        return {task["id"] for task in page["tasks"]}, page["total"]

    assert listed("failed") == ({waiting, ended}, 2)
    assert listed("pending") == ({fresh}, 1)
    assert listed("pending", "failed") == ({waiting, fresh, ended}, 3)
    assert listed("processing") == (set(), 0)
    stats = api.client.get("/api/tasks/stats").json()
    assert (stats["pending"], stats["failed"]) == (1, 2)
    assert stats["byType"]["send_email"] == {"pending": 1, "processing": 0, "completed": 0, "failed": 2}
    api.complete()
    taken = api.run(api.qo_client.dequeue())
    assert taken == [] and show(api, waiting)["status"] == "failed"


def test_a_task_that_waits_for_its_retry_can_be_retried_now(api: Served):
    task_id = create(api)
    api.break_down(delay=3600)
    answer = api.post(f"/api/tasks/{task_id}/retry")
    assert answer.status_code == 200
    assert answer.json() == {"id": task_id, "status": "pending", "attempts": 0, "nextRetryAt": None}
    assert api.complete() == task_id


def test_a_task_that_waits_for_its_retry_can_be_deleted(api: Served):
    task_id = create(api)
    api.break_down(delay=3600)
    assert api.client.delete(f"/api/tasks/{task_id}").status_code == 204
    assert api.client.get(f"/api/tasks/{task_id}").status_code == 404


def test_it_fails_after_its_last_attempt(api: Served):
    task_id = create(api, maxAttempts=2)
    api.break_down()
    api.break_down()
    task = show(api, task_id)
    assert task["status"] == "failed" and task["attempts"] == task["maxAttempts"] == 2
    assert task["error"] == "boom" and task["nextRetryAt"] is None and task["completedAt"] is not None


def test_run_after_is_kept_and_heeded(api: Served):
    task_id = create(api, runAfter="2099-01-15T10:00:00+01:00")
    assert show(api, task_id)["runAfter"] == "2099-01-15T09:00:00.000Z"
    assert api.run(api.qo_client.dequeue()) == []


def test_run_after_keeps_the_submitted_value(api: Served):
    asked = "2025-01-15T10:00:00.000Z"
    task_id = create(api, runAfter="2025-01-15T10:00:00Z")
    assert show(api, task_id)["runAfter"] == asked
    api.break_down()
    assert show(api, task_id)["runAfter"] == asked
    assert api.complete() == task_id
    assert show(api, task_id)["runAfter"] == asked


def test_unknown_ids_are_404(api: Served):
    for task_id in (NOWHERE, "nope", "a%20b", "%00", "x" * 300):
        assert api.client.get(f"/api/tasks/{task_id}").status_code == 404
        assert api.client.delete(f"/api/tasks/{task_id}").status_code == 404
        assert api.post(f"/api/tasks/{task_id}/retry").status_code == 404


# --- GET /api/tasks


@EVERY_STORE
def test_lists_carry_total_limit_and_offset(api: Served):
    ids = [create(api) for _ in range(5)]
    page = api.client.get("/api/tasks").json()
    assert page.keys() == {"tasks", "total", "limit", "offset"}
    assert (page["total"], page["limit"], page["offset"]) == (5, 50, 0)
    assert [task["id"] for task in page["tasks"]] == ids[::-1]
    second = api.client.get("/api/tasks?limit=2&offset=2").json()
    assert [task["id"] for task in second["tasks"]] == [ids[2], ids[1]] and second["total"] == 5
    assert api.client.get("/api/tasks?offset=9").json()["tasks"] == []


@EVERY_STORE
def test_lists_are_filtered_by_type_and_repeated_status(api: Served):
    create(api, "other")
    failed = create(api, maxAttempts=1)
    api.break_down(type="send_email")
    waiting = create(api)

    def ids(query: str) -> tuple[list[str], int]:
        page = api.client.get(f"/api/tasks?{query}").json()
        return [task["id"] for task in page["tasks"]], page["total"]

    assert ids("status=failed&status=pending&type=send_email") == ([waiting, failed], 2)
    assert ids("status=failed") == ([failed], 1)
    assert ids("status=processing") == ([], 0)
    assert ids("type=nothing") == ([], 0)


def test_lists_refuse_what_makes_no_sense(api: Served):
    for query in ("limit=0", "limit=101", "limit=many", "offset=-1", "offset=10001", "status=queued", "sort=id"):
        answer = api.client.get(f"/api/tasks?{query}")
        assert answer.status_code == 400, query
        assert answer.json()["field"] == query.partition("=")[0]


# --- POST /api/tasks/:id/retry


def test_retry_resets_a_failed_task(api: Served):
    task_id = create(api, maxAttempts=1)
    api.break_down()
    answer = api.post(f"/api/tasks/{task_id}/retry")
    assert answer.status_code == 200
    assert answer.json() == {"id": task_id, "status": "pending", "attempts": 0, "nextRetryAt": None}
    assert api.complete() == task_id


def test_only_failed_tasks_are_retried(api: Served):
    task_id = create(api)
    assert api.post(f"/api/tasks/{task_id}/retry").status_code == 400
    taken = api.take()
    assert api.post(f"/api/tasks/{task_id}/retry").status_code == 400
    api.run(api.qo_client.ack(taken))
    assert api.post(f"/api/tasks/{task_id}/retry").status_code == 400


def test_a_cancelled_task_is_a_failed_one_here(api: Served):
    task_id = create(api)
    api.run(api.qo_client.cancel(task_id))
    assert show(api, task_id)["status"] == "failed" and show(api, task_id)["error"] == "cancelled"
    assert api.post(f"/api/tasks/{task_id}/retry").status_code == 200


# --- POST /api/tasks/:id/cancel


def test_a_task_that_has_not_ended_can_be_cancelled(api: Served):
    pending, waiting, running = create(api), create(api, "waiting"), create(api, "running")
    api.break_down(type="waiting", delay=60)
    taken = api.take("running")
    for task_id, attempts in ((pending, 0), (waiting, 1), (running, 0)):
        answer = api.post(f"/api/tasks/{task_id}/cancel")
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"id": task_id, "status": "failed", "attempts": attempts, "nextRetryAt": None}
        assert show(api, task_id)["completedAt"] is not None
        assert api.post(f"/api/tasks/{task_id}/cancel").status_code == 400
    stored = api.run(api.qo_client.get(taken.id))
    assert stored is not None and stored.status == "cancelled"
    assert api.post(f"/api/tasks/{NOWHERE}/cancel").status_code == 404


# --- DELETE /api/tasks/:id


def test_ended_tasks_are_deleted_with_204(api: Served):
    for end in (api.complete, api.break_down):
        task_id = create(api, maxAttempts=1)
        end()
        answer = api.client.delete(f"/api/tasks/{task_id}")
        assert answer.status_code == 204 and answer.content == b""
        assert api.client.get(f"/api/tasks/{task_id}").status_code == 404


def test_pending_and_processing_tasks_are_not_deleted(api: Served):
    task_id = create(api)
    assert api.client.delete(f"/api/tasks/{task_id}").status_code == 400
    api.take()
    assert api.client.delete(f"/api/tasks/{task_id}").status_code == 400


# --- GET /api/tasks/stats


@EVERY_STORE
def test_stats_count_by_status_and_type(api: Served):
    create(api, "process_image")
    create(api, maxAttempts=1)
    api.break_down(type="send_email")
    create(api)
    api.complete(type="send_email")
    stats = api.client.get("/api/tasks/stats").json()
    assert stats == {
        "pending": 1,
        "processing": 0,
        "completed": 1,
        "failed": 1,
        "byType": {
            "send_email": {"pending": 0, "processing": 0, "completed": 1, "failed": 1},
            "process_image": {"pending": 1, "processing": 0, "completed": 0, "failed": 0},
        },
    }


# --- the controls


def test_pause_and_resume_say_how_it_is_now(api: Served):
    for path, paused in (("pause", True), ("pause", True), ("resume", False)):
        answer = api.post(f"/api/tasks/{path}")
        assert answer.status_code == 200 and answer.json() == {"paused": paused}
        assert api.run(api.qo_client.controls.read()).paused is paused


def test_the_rate_limit_is_set_and_lifted(api: Served):
    for rate in (10, 0.5, 0):
        answer = api.post("/api/tasks/rate-limit", {"tasksPerSecond": rate})
        assert answer.status_code == 200 and answer.json() == {"tasksPerSecond": rate}
        assert api.run(api.qo_client.controls.read()).rate_limit == rate
    for body in ({"tasksPerSecond": -1}, {"tasksPerSecond": "10"}, {}, {"tasksPerSecond": None}):
        answer = api.post("/api/tasks/rate-limit", body)
        assert answer.status_code == 400 and answer.json()["field"] == "tasksPerSecond"


# --- DELETE /api/tasks


@EVERY_STORE
def test_cleaning_up_deletes_what_completed_before(api: Served):
    done, waiting = create(api), create(api)
    api.complete()
    assert api.client.delete("/api/tasks?olderThan=2020-01-01T00:00:00Z").json() == {"deleted": 0}
    answer = api.client.delete("/api/tasks?olderThan=2099-01-01T00:00:00Z")
    assert answer.status_code == 200 and answer.json() == {"deleted": 1}
    assert api.client.get(f"/api/tasks/{done}").status_code == 404
    assert api.client.get(f"/api/tasks/{waiting}").status_code == 200


def test_cleaning_up_needs_a_timestamp(api: Served):
    for query in ("", "?olderThan=", "?olderThan=yesterday", "?olderThan=99999-01-01"):
        answer = api.client.delete(f"/api/tasks{query}")
        assert answer.status_code == 400 and answer.json()["field"] == "olderThan"
