"""`/api/v1`, line by line, over HTTP."""

import re
import threading
import uuid
from typing import Any

import msgspec

from qo import notes
from qo.clock import system_clock
from qo.model import ANY
from tests.web.serving import EVERY_STORE, Served, eventually

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
ENTITY = {
    "task_id", "priority", "effective_priority", "payload", "status", "retry_count", "max_retries", "created_at",
    "started_at", "completed_at", "assigned_worker_id", "result", "error", "timeout_seconds", "idempotency_key",
    "trace_id",
}  # fmt: skip
WORKER = {
    "worker_id", "status", "current_tasks", "last_heartbeat", "capacity", "current_load", "capabilities", "version",
}  # fmt: skip


def submit(api: Served, **more: object) -> str:
    answer = api.post("/api/v1/tasks", {"task_type": "work", **more})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["task_id"])


def show(api: Served, task_id: str) -> dict[str, object]:
    answer = api.client.get(f"/api/v1/tasks/{task_id}")
    assert answer.status_code == 200
    task: dict[str, object] = answer.json()
    return task


def test_a_submission_is_answered_with_id_status_and_position(api: Served):
    body = {
        "task_type": "process_video",
        "priority": "high",
        "parameters": {"url": "https://example.com/video.mp4"},
        "required_capabilities": ["gpu"],
        "timeout_seconds": 600,
        "idempotency_key": "optional-key",
    }
    answer = api.post("/api/v1/tasks", body)
    assert answer.status_code == 201
    receipt = answer.json()
    assert receipt.keys() == {"task_id", "status", "queue_position"}
    assert str(uuid.UUID(receipt["task_id"])) == receipt["task_id"]
    assert receipt["status"] == "queued" and receipt["queue_position"] == 1

    task = show(api, receipt["task_id"])
    assert task["payload"] == {
        "task_type": "process_video",
        "parameters": {"url": "https://example.com/video.mp4"},
        "required_capabilities": ["gpu"],
    }
    assert task["timeout_seconds"] == 600 and task["idempotency_key"] == "optional-key"


def test_a_task_has_every_field_of_the_entity(api: Served):
    task = show(api, submit(api))
    assert task.keys() >= ENTITY
    assert task["status"] == "queued" and task["priority"] == task["effective_priority"] == "medium"
    assert task["retry_count"] == 0 and isinstance(task["trace_id"], str)
    assert INSTANT.fullmatch(str(task["created_at"]))
    for name in ("started_at", "completed_at", "assigned_worker_id", "result", "error", "idempotency_key"):
        assert task[name] is None
    assert "lease_id" not in task


def test_each_priority_has_its_own_defaults(api: Served):
    for level, retries, timeout in (("high", 5, 300), ("medium", 3, 600), ("low", 2, 900)):
        task = show(api, submit(api, priority=level))
        assert (task["priority"], task["max_retries"], task["timeout_seconds"]) == (level, retries, timeout)
    assert show(api, submit(api, max_retries=0, timeout_seconds=1.5))["timeout_seconds"] == 1.5


def test_a_retry_may_take_half_as_long_again(api: Served):
    task_id = submit(api, priority="high")
    api.break_down("slow")
    task = show(api, task_id)
    assert task["timeout_seconds"] == 450 and task["retry_count"] == 1 and task["status"] == "queued"
    assert task["error"] == {"message": "slow", "kind": "error", "retriable": True}


def test_statuses_go_from_queued_to_executing_to_completed(api: Served):
    task_id = submit(api)
    taken = api.take()
    executing = show(api, task_id)
    assert executing["status"] == "executing" and executing["assigned_worker_id"] == taken.worker_id
    assert INSTANT.fullmatch(str(executing["started_at"]))
    api.run(api.qo_client.ack(taken, {"frames": 42}))
    completed = show(api, task_id)
    assert completed["status"] == "completed" and completed["result"] == {"frames": 42}
    assert INSTANT.fullmatch(str(completed["completed_at"]))


def test_a_task_whose_retries_are_used_up_is_a_dead_letter(api: Served):
    task_id = submit(api, max_retries=1)
    api.break_down()
    api.break_down()
    task = show(api, task_id)
    assert task["status"] == "dead_letter" and task["retry_count"] == 2
    assert task["error"] == {"message": "boom", "kind": "error", "retriable": True}


def test_cancelling_answers_with_the_status_and_may_be_repeated(api: Served):
    task_id = submit(api)
    for _ in range(2):
        answer = api.client.delete(f"/api/v1/tasks/{task_id}")
        assert answer.status_code == 200 and answer.json() == {"task_id": task_id, "status": "cancelled"}
    assert show(api, task_id)["status"] == "cancelled"


def test_what_has_ended_cannot_be_cancelled(api: Served):
    task_id = submit(api)
    api.complete()
    answer = api.client.delete(f"/api/v1/tasks/{task_id}")
    assert answer.status_code == 409 and answer.json()["code"] == "wrong_status"


def test_a_running_task_can_be_cancelled(api: Served):
    task_id = submit(api)
    api.take()
    assert api.client.delete(f"/api/v1/tasks/{task_id}").json()["status"] == "cancelled"


def test_an_idempotency_key_makes_one_task(api: Served):
    first = api.post("/api/v1/tasks", {"task_type": "work", "idempotency_key": "k"})
    again = api.post("/api/v1/tasks", {"task_type": "work", "idempotency_key": "k"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["task_id"] == first.json()["task_id"]
    assert again.json()["status"] == "queued" and again.json()["queue_position"] >= 1
    api.complete()
    ended = api.post("/api/v1/tasks", {"task_type": "work", "idempotency_key": "k"}).json()
    assert ended["status"] == "completed" and ended["queue_position"] is None
    other = {"task_type": "work", "idempotency_key": "k", "parameters": {"n": 1}}
    for path, body in (("/api/v1/tasks", other), ("/api/v1/tasks/bulk", {"tasks": [other]})):
        reused = api.post(path, body)
        assert (reused.status_code, reused.json()["code"]) == (409, "key_reused")
        assert first.json()["task_id"] in reused.json()["error"]
    assert api.post("/api/v1/tasks", other | {"task_type": "other"}).status_code == 201


def test_higher_priorities_stand_before_lower_ones(api: Served):
    def place(level: str) -> int:
        answer = api.post("/api/v1/tasks", {"task_type": "work", "priority": level})
        return int(answer.json()["queue_position"])

    assert [place(level) for level in ("low", "medium", "high", "high", "medium", "low")] == [1, 1, 1, 2, 4, 6]


def test_queue_statistics_have_the_shape_of_the_spec(api: Served):
    for level, number in (("high", 1), ("medium", 2), ("low", 3)):
        for _ in range(number):
            submit(api, priority=level)
    stats = api.client.get("/api/v1/queue/stats").json()
    assert {level: lane["depth"] for level, lane in stats["queues"].items()} == {"high": 1, "medium": 2, "low": 3}
    assert all(lane.keys() == {"depth", "oldest_age_seconds"} for lane in stats["queues"].values())
    assert all(lane["oldest_age_seconds"] >= 0 for lane in stats["queues"].values())
    assert stats["workers"] == {"active": 0, "draining": 0, "dead": 0, "total_capacity": 0, "used_capacity": 0}
    assert stats["throughput"] == {"completed_last_minute": 0, "failed_last_minute": 0}
    assert stats["exact"] is True


def test_throughput_counts_what_ended_in_the_last_minute(api: Served):
    def throughput() -> Any:
        return api.client.get("/api/v1/queue/stats").json()["throughput"]

    assert throughput() == {"completed_last_minute": 0, "failed_last_minute": 0}
    submit(api)
    submit(api, max_retries=0)
    api.complete()
    api.break_down()
    # A server reuses what it has read for three times as long as the read took.
    eventually(lambda: throughput() == {"completed_last_minute": 1, "failed_last_minute": 1})


def test_workers_are_shown_as_the_entity_has_them(api: Served):
    assert api.client.get("/api/v1/workers").json() == {"workers": []}
    register(api, "w-1", capacity=5, current_load=2)
    register(api, "w-2", capacity=3, current_load=1, status="draining")
    register(api, "w-3", capacity=9, current_load=9, last_heartbeat=1.0)
    workers = {worker["worker_id"]: worker for worker in api.client.get("/api/v1/workers").json()["workers"]}
    assert all(worker.keys() >= WORKER for worker in workers.values())
    assert [workers[name]["status"] for name in ("w-1", "w-2", "w-3")] == ["active", "draining", "dead"]
    assert api.client.get("/api/v1/queue/stats").json()["workers"] == {
        "active": 1, "draining": 1, "dead": 1, "total_capacity": 8, "used_capacity": 3,
    }  # fmt: skip


def register(api: Served, worker_id: str, **more: object) -> None:
    given = {"started_at": 0.0, "last_heartbeat": system_clock(), **more}
    note = notes.WorkerNote(worker_id=worker_id, **given)  # type: ignore[arg-type]
    api.run(api.qo_client.engine.write_note(notes.WORKERS + worker_id, msgspec.json.encode(note), expected=ANY))


# --- beside the spec


def test_many_are_submitted_at_once(api: Served):
    tasks = [{"task_type": "work", "parameters": {"n": n}} for n in range(3)]
    answer = api.post("/api/v1/tasks/bulk", {"tasks": [*tasks, {"task_type": "work", "idempotency_key": "k"}] * 2})
    assert answer.status_code == 201
    receipts = answer.json()
    assert receipts["new"] == 7 and len(receipts["tasks"]) == 8
    assert (
        receipts["tasks"][3] == receipts["tasks"][7] == {"task_id": receipts["tasks"][3]["task_id"], "status": "queued"}
    )
    assert show(api, receipts["tasks"][2]["task_id"])["payload"]["parameters"] == {"n": 2}  # type: ignore[index]


def test_one_senseless_task_refuses_the_bulk_and_is_named(api: Served):
    answer = api.post("/api/v1/tasks/bulk", {"tasks": [{"task_type": "work"}, {"task_type": "no good"}]})
    assert answer.status_code == 400 and answer.json()["field"] == "tasks[1].task_type"
    assert api.client.get("/api/v1/tasks").json()["tasks"] == []


@EVERY_STORE
def test_tasks_are_listed_newest_first_page_by_page(api: Served):
    ids = [submit(api) for _ in range(5)]
    seen: list[str] = []
    after = ""
    for _ in range(3):
        page = api.client.get("/api/v1/tasks", params={"limit": 2, "after": after}).json()
        seen += [task["task_id"] for task in page["tasks"]]
        after = page["next"] or ""
    assert seen == ids[::-1] and after == ""


@EVERY_STORE
def test_lists_are_filtered_by_status_type_queue_and_worker(api: Served):
    submit(api, task_type="other", queue="mail")
    dead = submit(api, max_retries=0)
    api.break_down(type="work")
    done = submit(api)
    worker = api.take("work").worker_id

    def ids(**params: object) -> list[str]:
        answer = api.client.get("/api/v1/tasks", params=params)  # type: ignore[arg-type]
        assert answer.status_code == 200, answer.text
        return [task["task_id"] for task in answer.json()["tasks"]]

    assert ids(status="dead_letter") == [dead] and ids(status="failed") == []
    assert ids(status=["dead_letter", "executing"]) == [done, dead]
    assert len(ids(type="other")) == len(ids(queue="mail")) == 1 and ids(queue="nowhere") == []
    assert set(ids(worker=worker)) == {done, dead}
    assert len(ids()) == 3


@EVERY_STORE
def test_history_shows_every_transition_in_the_terms_of_this_api(api: Served):
    task_id = submit(api, max_retries=0)
    api.break_down()
    events = api.client.get(f"/api/v1/tasks/{task_id}/history").json()["events"]
    assert [event["status"] for event in events] == ["queued", "executing", "dead_letter"]


def test_replay_sends_a_dead_letter_back_with_its_retries_reset(api: Served):
    task_id = submit(api, max_retries=0)
    assert api.post(f"/api/v1/tasks/{task_id}/replay").status_code == 409
    api.break_down()
    answer = api.post(f"/api/v1/tasks/{task_id}/replay")
    assert answer.status_code == 200 and answer.json() == {"task_id": task_id, "status": "queued"}
    again = show(api, task_id)
    assert again["retry_count"] == 0 and again["timeout_seconds"] == 600


@EVERY_STORE
def test_many_are_replayed_by_filter(api: Served):
    for _ in range(3):
        submit(api, max_retries=0)
        api.break_down()
    cancelled = submit(api)
    api.client.delete(f"/api/v1/tasks/{cancelled}")
    assert api.post("/api/v1/tasks/replay", {"status": ["failed"]}).json() == {"replayed": 0, "more": False}
    assert api.post("/api/v1/tasks/replay", {"type": ["other"]}).json() == {"replayed": 0, "more": False}
    some = api.post("/api/v1/tasks/replay", {"status": ["dead_letter"], "limit": 2}).json()
    assert (some["replayed"], some["more"]) == (2, True)
    assert api.post("/api/v1/tasks/replay", {}).json() == {"replayed": 2, "more": False}
    assert len(api.client.get("/api/v1/tasks?status=queued").json()["tasks"]) == 4


@EVERY_STORE
def test_archived_tasks_leave_the_listing_and_keep_their_status(api: Served):
    ended = [submit(api) for _ in range(2)]
    api.complete({"ok": True})
    api.client.delete(f"/api/v1/tasks/{ended[1]}")
    dead = submit(api, max_retries=0)
    api.break_down()
    for task_id, status in zip([*ended, dead], ("completed", "cancelled", "dead_letter"), strict=True):
        answer = api.post(f"/api/v1/tasks/{task_id}/archive")
        assert answer.json() == {"task_id": task_id, "status": status}
        assert show(api, task_id)["archived"] is True
    assert api.client.get("/api/v1/tasks").json()["tasks"] == []
    shelf = api.client.get("/api/v1/tasks?archived=true&status=completed").json()["tasks"]
    assert [task["task_id"] for task in shelf] == [ended[0]]
    assert api.post(f"/api/v1/tasks/{dead}/archive").status_code == 409


def test_a_result_is_there_or_not_yet(api: Served):
    task_id = submit(api)
    early = api.client.get(f"/api/v1/tasks/{task_id}/result")
    assert early.status_code == 202 and early.json()["status"] == "queued"
    api.complete([1, 2])
    answer = api.client.get(f"/api/v1/tasks/{task_id}/result?wait=10")
    assert answer.status_code == 200
    assert answer.json() == {"task_id": task_id, "status": "completed", "result": [1, 2], "error": None}


def test_a_request_can_wait_for_a_result(api: Served):
    task_id = submit(api)
    worker = threading.Timer(0.05, api.complete, args=("done",))
    worker.start()
    answer = api.client.get(f"/api/v1/tasks/{task_id}/result?wait=15")
    worker.join()
    assert answer.status_code == 200 and answer.json()["result"] == "done"


def test_a_failure_is_a_result_too(api: Served):
    task_id = submit(api, max_retries=0)
    api.break_down("no")
    answer = api.client.get(f"/api/v1/tasks/{task_id}/result").json()
    assert answer["status"] == "dead_letter" and answer["error"] == {
        "message": "no",
        "kind": "error",
        "retriable": True,
    }


def test_a_trace_goes_with_its_task(api: Served):
    trace = "0af7651916cd43dd8448eb211c80319c"
    header = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    task_id = api.post("/api/v1/tasks", {"task_type": "work"}, headers=header).json()["task_id"]
    assert show(api, task_id)["trace_id"] == trace


def test_tasks_can_be_scheduled(api: Served):
    task_id = submit(api, run_at="2099-01-01T00:00:00Z")
    assert show(api, task_id)["available_at"] == "2099-01-01T00:00:00.000Z"
    assert api.run(api.qo_client.dequeue()) == []
    assert api.client.get("/api/v1/queue/stats").json()["queues"]["medium"] == {"depth": 1, "oldest_age_seconds": 0.0}
