"""Live updates."""

import json
from collections.abc import Iterator

import httpx

from qo.engines.memory import MemoryEngine
from qo.web import WebSettings
from qo.web.feed import Feed
from tests.web.serving import Served, served


def events(answer: httpx.Response) -> Iterator[tuple[str, object]]:
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        if line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


def test_a_listener_hears_counts_and_changes(api: Served):
    task_id = api.post("/api/v1/tasks", {"task_type": "t"}).json()["task_id"]
    with api.client.stream("GET", "/api/v1/events") as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        heard = events(answer)
        kind, counts = next(heard)
        assert kind == "counts" and isinstance(counts, dict) and counts["queued"] == 1
        kind, tasks = next(heard)
        assert kind == "tasks" and isinstance(tasks, list)
        assert [(task["task_id"], task["status"]) for task in tasks] == [(task_id, "queued")]
        api.complete()
        kind, counts = next(heard)
        assert kind == "counts" and isinstance(counts, dict) and counts["completed"] == 1
        _, tasks = next(heard)
        assert isinstance(tasks, list) and tasks[0]["status"] == "completed"


def test_listeners_are_few():
    with served(MemoryEngine(), WebSettings(listeners=1)) as api, api.client.stream("GET", "/api/v1/events") as first:
        assert first.status_code == 200
        second = api.client.get("/api/v1/events")
        assert second.status_code == 503 and second.headers["retry-after"] == "10"


async def test_a_listener_who_leaves_makes_room():
    feed = Feed(MemoryEngine(), most=1)
    for _ in range(3):
        listening = feed.listen()
        assert (await anext(listening)).startswith(b"retry:")
        await listening.aclose()  # type: ignore[attr-defined]


async def test_a_slow_listener_loses_the_oldest():
    feed = Feed(MemoryEngine(), most=1)
    listening = feed.listen()
    await anext(listening)
    for number in range(20):
        feed._send(b"%d" % number)
    assert await anext(listening) == b"4"
    await listening.aclose()  # type: ignore[attr-defined]
