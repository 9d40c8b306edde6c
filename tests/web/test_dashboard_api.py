"""What the dashboard's pages ask: in the model's own words, and at the same cost at any depth."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from qo import notes
from qo.client import Client, connect
from qo.clock import system_clock
from qo.codec import encode_value
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.model import NEW, Filter
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.dashboard_api import search
from qo.web.dashboard_api.search import Search, find, find_sorted
from qo.web.http.tokens import create_token
from tests.conditions import wait_until
from tests.web.serving import EVERY_STORE, Served, eventually, served

BOARD = "/api/v1/dashboard"


def submit(api: Served, type: str = "t", payload: object = None, **options: Any) -> str:
    return api.run(api.qo_client.enqueue(type, payload, **options)).id


def listed(api: Served, **params: Any) -> list[str]:
    answer = api.client.get(f"{BOARD}/tasks", params=params)
    assert answer.status_code == 200, answer.text
    return [task["id"] for task in answer.json()["tasks"]]


def act(api: Served, action: str, **target: Any) -> Any:
    answer = api.post(f"{BOARD}/act", {"action": action, **target})
    assert answer.status_code == 200, answer.text
    return answer.json()


@EVERY_STORE
def test_an_overview_counts_everything(api: Served):
    submit(api, "mail", queue="out", priority=0)
    submit(api, "mail", queue="out")
    submit(api, "crawl")
    api.run(api.qo_client.nack(api.take("crawl"), "no luck", delay=0))
    submit(api, "bad", max_retries=0)
    api.run(api.qo_client.nack(api.take("bad"), "ValueError: no\nTraceback"))
    api.complete(type="mail")
    api.run(api.qo_client.controls.pause(queues=["out"]))
    seen: dict[str, Any] = {}

    def is_counted() -> bool:
        seen.update(api.client.get(f"{BOARD}/overview").json())
        return bool(seen["counts"]["completed"]) and any(minute["failed"] for minute in seen["throughput"])

    eventually(is_counted)  # samples and statistics serve for as long as it took to read them, and longer
    assert seen["counts"] == {
        "pending": 2,
        "running": 0,
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
        "archived": 0,
    }
    out = next(line for line in seen["queues"] if line["queue"] == "out")
    assert (out["pending"], out["completed"], out["paused"]) == (1, 1, True) and out["oldest_age"] >= 0
    assert out["live_types"] == 1
    assert {line["type"]: line["failed"] for line in seen["types"]} == {"mail": 0, "crawl": 0, "bad": 1}
    assert [line["priority"] for line in seen["priorities"]] == ["high", "medium", "low"] and seen["exact"]
    assert [task["type"] for task in seen["failures"]] == ["bad"]
    assert len(seen["throughput"]) == 60
    assert sum(minute["completed"] for minute in seen["throughput"]) == 1
    assert sum(minute["failed"] for minute in seen["throughput"]) == 1
    assert seen["controls"]["paused"] == {"all": False, "queues": ["out"], "types": []}


def test_an_hour_is_known_to_a_server_that_has_just_started(api: Served):
    submit(api)
    api.complete()
    api.run(api.qo_client.recorder.flush())
    with served(api.qo_client.engine) as later:  # the same store, another server
        minutes = later.client.get(f"{BOARD}/overview").json()["throughput"]
    assert sum(minute["completed"] for minute in minutes) == 1


def test_an_overview_counts_what_any_process_completed_however_much_it_is(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/qo.db"

    async def complete_many(elsewhere: Client) -> None:  # as another process would
        async with elsewhere:
            await elsewhere.submit_many([elsewhere.new_task("t", b"null") for _ in range(2500)])
            for _ in range(5):
                tasks = await elsewhere.dequeue(batch_size=500)
                await asyncio.gather(*(elsewhere.ack(task) for task in tasks))
            await elsewhere.delete_all(Filter())

    with served(open_engine(url)) as api:
        api.run(complete_many(connect(url)))

        def completed() -> int:
            minutes = api.client.get(f"{BOARD}/overview").json()["throughput"]
            return sum(minute["completed"] for minute in minutes)

        eventually(lambda: completed() == 2500)
        last = api.client.get("/api/v1/queue/stats").json()["throughput"]
        assert 0 < last["completed_last_minute"] <= 2500


@EVERY_STORE
def test_tasks_are_found_by_each_filter(api: Served):
    mail = submit(api, "mail", {"to": "Ada@Example.com"}, queue="out", priority=2)
    keyed = submit(api, "crawl", idempotency_key="the-key")
    api.run(api.qo_client.cancel(keyed))
    assert listed(api) == [keyed, mail] and listed(api, status="pending") == [mail]
    assert listed(api, type="mail") == listed(api, queue="out") == listed(api, priority=2) == [mail]
    assert listed(api, text="ada@EXAMPLE") == [mail] and listed(api, text="the-key") == [keyed]
    assert listed(api, text=mail, status="failed") == [mail]  # whoever pastes an id wants that task
    assert listed(api, shard=mail[:3], type="mail") == [mail] and listed(api, type="mail", text="nobody") == []
    held = api.take("mail")
    assert listed(api, worker=held.worker_id) == [mail]


def test_a_list_is_light_and_a_task_is_whole(api: Served):
    task_id = submit(api, payload={"big": "x" * 5000}, max_retries=0)
    api.break_down("e" * 5000)
    (row,) = api.client.get(f"{BOARD}/tasks").json()["tasks"]
    assert "payload" not in row and "result" not in row and len(row["error"]) == 501
    whole = api.client.get(f"{BOARD}/tasks/{task_id}").json()
    assert whole["payload"] == {"big": "x" * 5000} and len(whole["error"]) == 5000 and "lease_id" not in whole
    assert api.client.get(f"{BOARD}/tasks/{'0' * 8}").status_code == 404


@EVERY_STORE
def test_pages_follow_each_other_in_any_order(api: Served):
    ids = [submit(api, priority=9 - number) for number in range(7)]
    for sort, expected in (("newest", ids[::-1]), ("rank", ids[::-1]), ("updated", ids[::-1]), ("available", ids)):
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            answer = api.client.get(f"{BOARD}/tasks", params={"sort": sort, "limit": 3, "after": after}).json()
            seen += [task["id"] for task in answer["tasks"]]
            after = answer["next"]
            assert answer["total"] == 7
        assert seen == expected, sort
    for bad in (
        {"after": "x"},
        {"after": "x", "sort": "rank"},
        {"shard": "xyz"},
        {"sort": "random"},
        {"text": "x" * 201},
    ):
        assert api.client.get(f"{BOARD}/tasks", params=bad).status_code == 400, bad


async def test_a_search_stops_after_a_limit_and_returns_a_cursor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "MAX_READ", 100)
    monkeypatch.setattr(search, "_BATCH_SIZE", 50)
    monkeypatch.setattr(search, "WINDOW", 30)
    async with Client(MemoryEngine()) as client:
        news = [client.new_task("t", encode_value({"n": number})) for number in range(250)]
        await client.submit_many(news)
        needle = Search(where=Filter(), text='"n":3}')
        first = await find(client.engine, needle, limit=10)
        assert (first.tasks, first.searched) == ([], 100) and first.next
        second = await find(client.engine, needle, limit=10, after=first.next)
        third = await find(client.engine, needle, limit=10, after=second.next or "")
        assert [task.id for task in third.tasks] == [news[3].id] and third.next is None
        ordered = await find_sorted(client.engine, Search(where=Filter()), "available", limit=10, now=system_clock())
        assert ordered.window == 30 and len(ordered.tasks) == 10


@EVERY_STORE
def test_history_shows_the_task_as_it_was(api: Served):
    task_id = submit(api, payload={"a": 1}, max_retries=1)
    api.break_down("first")
    api.complete({"ok": True})
    events = api.client.get(f"{BOARD}/tasks/{task_id}/history").json()["events"]
    assert [event["status"] for event in events] == ["pending", "running", "pending", "running", "completed"]
    versions = [event["task"] for event in events]
    assert [task["error"] for task in versions] == [None, None, "first", "first", None]
    assert [task["result"] for task in versions] == [None, None, None, None, {"ok": True}]
    assert [task["started_at"] is not None for task in versions] == [False, True, False, True, True]
    assert all(task["payload"] == {"a": 1} and "lease_id" not in task for task in versions)
    assert "timeout" not in versions[0] and versions[-1]["timeout"] == 300  # what was not recorded is not guessed


def test_acting_by_id_reports_what_was_refused(api: Served):
    failed, waiting = submit(api, "f", max_retries=0), submit(api, "w")
    api.break_down(type="f")
    answer = act(api, "replay", ids=[failed, waiting, failed])
    assert answer["done"] == 1 and [each["id"] for each in answer["refused"]] == [waiting]
    assert answer["refused"][0]["why"] == "the task is pending; allowed: archived, cancelled, failed"
    assert act(api, "cancel", ids=[failed])["done"] == 1
    assert act(api, "archive", ids=[failed])["done"] == 1
    assert act(api, "delete", ids=[failed])["done"] == 1
    assert act(api, "delete", ids=[failed])["refused"] == [{"id": failed, "why": "there is no such task"}]
    wrong: list[dict[str, Any]] = [{}, {"ids": [], "filter": {}}, {"ids": ["nonsense"]}]
    for bad in wrong:
        assert api.post(f"{BOARD}/act", {"action": "replay", **bad}).status_code in (400, 404)


@EVERY_STORE
def test_acting_on_all_that_match_goes_through_them_in_steps(api: Served):
    ids = [submit(api, "many", {"n": number}) for number in range(7)]
    other = submit(api, "other")
    done, after = 0, ""
    while after is not None:
        answer = act(api, "cancel", filter={"type": ["many"]}, limit=3, after=after)
        done, after = done + answer["done"], answer["next"]
    assert done == 7 and set(listed(api, status="cancelled")) == set(ids) and listed(api, status="pending") == [other]
    assert act(api, "cancel", filter={"status": ["completed"]}) == {"done": 0, "refused": [], "next": None}
    assert act(api, "delete", filter={"text": '"n":4'})["done"] == 1
    assert ids[4] not in listed(api)


def test_cleaning_up_deletes_what_ended_long_ago(api: Served):
    done, failed = submit(api, "done"), submit(api, "failed", max_retries=0)
    api.complete(type="done")
    api.break_down(type="failed")
    assert api.post(f"{BOARD}/cleanup", {"older_than": 3600, "status": ["completed"]}).json() == {"deleted": 0}
    assert api.post(f"{BOARD}/cleanup", {"older_than": 0, "status": ["completed"]}).json() == {"deleted": 1}
    assert listed(api) == [failed] and done
    for bad in ({"older_than": 0, "status": []}, {"older_than": 0, "status": ["pending"]}, {"status": ["failed"]}):
        assert api.post(f"{BOARD}/cleanup", bad).status_code == 400


def test_controls(api: Served):
    url = "/api/v1/controls"
    assert api.post(f"{url}/pause", {"queue": "q"}).json()["paused"] == {"all": False, "queues": ["q"], "types": []}
    assert api.post(f"{url}/pause", {}).json()["paused"]["all"]
    assert api.post(f"{url}/rate-limit", {"tasks_per_second": 2, "type": "t"}).json()["limits"] == {"t": 2.0}
    assert api.post(f"{url}/rate-limit", {"tasks_per_second": -1}).status_code == 400
    assert api.post(f"{url}/max-types", {"max_types": 7}).json()["max_types"] == 7
    assert api.post(f"{url}/max-types", {"max_types": -1}).status_code == 400
    api.post(f"{url}/resume", {})
    assert api.client.get(url).json() == {
        "paused": {"all": False, "queues": [], "types": []},
        "limit": 0.0,
        "limits": {"t": 2.0},
        "max_types": 7,
        "fleet": {},
    }


def worker_note(api: Served, worker_id: str, heartbeat: float, *, load: int = 0, **handles: Any) -> None:
    note = notes.WorkerNote(
        worker_id=worker_id, started_at=0.0, last_heartbeat=heartbeat, capacity=4, current_load=load, **handles
    )
    data = msgspec.json.encode(note)
    api.run(api.qo_client.engine.write_note(notes.WORKERS + worker_id, data, expected=NEW))


def test_what_no_worker_handles_is_shown_in_every_view():
    with served(MemoryEngine()) as api:  # one of its own: answers are remembered for a second
        now = system_clock()
        worker_note(api, "mail", now, types=("mail",))
        worker_note(api, "side", now, queues=("side",))
        worker_note(api, "gone", now - 1000, types=("typo",))
        typo, mail, side = submit(api, "typo"), submit(api, "mail"), submit(api, "typo", queue="side")
        taken = submit(api, "dequeued")
        submit(api, "dequeued")
        assert api.take("dequeued").id == taken  # by code that does not register
        for url in (BOARD, "/api/v1", "/api"):
            tasks = api.client.get(f"{url}/tasks").json()["tasks"]
            assert [task.get("id") or task["task_id"] for task in tasks if task["unhandled"]] == [typo], url
            shown = {id: api.client.get(f"{url}/tasks/{id}").json()["unhandled"] for id in (typo, mail, side)}
            assert shown == {typo: True, mail: False, side: False}, url
        lines = api.client.get(f"{BOARD}/overview").json()["types"]
        assert {line["type"]: line["unhandled"] for line in lines} == {"typo": 1, "mail": 0, "dequeued": 0}
        assert api.client.get("/api/v1/queue/stats").json()["unhandled"] == {"typo": 1}
        assert "tasks_unhandled 1.0" in api.client.get("/metrics").text


def test_workers_and_draining_one(one_server: Served):
    now = system_clock()
    worker_note(one_server, "b", now, load=2)
    worker_note(one_server, "i", now)
    worker_note(one_server, "s", now - 1000)
    shown = one_server.client.get(f"{BOARD}/workers").json()["workers"]
    assert {worker["id"]: worker["status"] for worker in shown} == {"b": "busy", "i": "idle", "s": "stale"}
    assert one_server.client.get(f"{BOARD}/overview").json()["workers"] == {
        "busy": 1,
        "idle": 1,
        "draining": 0,
        "stale": 1,
    }
    assert one_server.post("/api/v1/workers/nobody/drain").status_code == 404
    assert one_server.post("/api/v1/workers/i/drain").json() == {"worker_id": "i", "draining": True}
    assert one_server.run(one_server.qo_client.controls.read()).draining == {"i"}


def test_a_worker_over_http_is_told_to_drain(api: Served):
    work = "/internal/workers"
    worker_id = api.post(f"{work}/register", {}).json()["worker_id"]
    submit(api)
    assert api.post(f"{work}/{worker_id}/heartbeat", {}).json()["drain"] is False
    api.post(f"/api/v1/workers/{worker_id}/drain")
    # The controls are remembered for a second.
    wait_until(lambda: api.post(f"{work}/{worker_id}/heartbeat", {}).json()["drain"])
    assert api.post(f"{work}/{worker_id}/poll", {"available_capacity": 5}).json()["tasks"] == []


def test_a_session_lists_the_permissions_of_the_caller():
    with served(MemoryEngine(), WebSettings(title="ours", token_required=True)) as api:
        made = {
            scope: api.run(create_token(api.qo_client.engine, scope, [Scope(scope)], now=0.0)).secret
            for scope in ("read", "admin")
        }
        for scope, secret in made.items():
            answer = api.client.get(f"{BOARD}/session", headers={"authorization": f"Bearer {secret}"}).json()
            assert answer["title"] == "ours" and answer["scopes"] == [scope]
            assert answer["can"]["write"] is (scope == "admin")


@pytest.mark.parametrize(("layout", "sharded"), [("tasks", True), ("one", False), ("log", False)])
def test_a_session_shows_whether_tasks_are_in_shards(tmp_path: Path, layout: str, sharded: bool):
    with served(open_engine(f"file://{tmp_path}/bucket?layout={layout}")) as api:
        assert api.client.get(f"{BOARD}/session").json()["can"]["shards"] is sharded
