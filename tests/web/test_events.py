"""Live updates."""

import json
from collections.abc import Iterator

import httpx
import pytest
from litestar.exceptions import HTTPException

from qo.engines.memory import MemoryEngine
from qo.testing import ManualClock
from qo.testing.samples import new, task_id
from qo.web import WebSettings
from qo.web.callers import LOCAL_CALLER, AccessLimits, Caller, Scope
from qo.web.http.access import Gate
from qo.web.http.tokens import create_token, revoke_token
from qo.web.v1.events import EventStream, Feed
from tests.web.serving import Served, served

OURS = AccessLimits(queues=frozenset({"ours"}))


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


async def always(_: Caller) -> bool:
    return True


async def test_a_listener_that_disconnects_makes_room():
    feed = Feed(MemoryEngine(), always, max_listeners=1)
    for _ in range(3):
        listening = feed.listen(LOCAL_CALLER)
        assert (await anext(listening)).startswith(b"retry:")
        await listening.aclose()  # type: ignore[attr-defined]


async def test_one_caller_cannot_take_all_streams():
    feed = Feed(MemoryEngine(), always, max_listeners=4)
    greedy, other = (Caller(id=name, name=name, kind="token", scopes=frozenset({Scope.READ})) for name in "ab")
    listening = [feed.listen(greedy) for _ in range(4)]
    assert [(await anext(each)).startswith(b"retry:") for each in listening] == [True] * 4
    for oldest in listening[:2]:
        listening.append(feed.listen(other))
        assert (await anext(listening[-1])).startswith(b"retry:")
        with pytest.raises(StopAsyncIteration):
            await anext(oldest)
    for caller in (greedy, other):  # as many as the other has
        with pytest.raises(HTTPException, match="event streams open"):
            feed.listen(caller)


async def test_a_slow_listener_loses_the_oldest():
    stream = EventStream(LOCAL_CALLER)
    for number in range(20):
        stream.send(b"%d" % number)
    assert await stream.next() == b"4"


@pytest.mark.parametrize("ended_by", ["revoked", "expired"])
async def test_a_stream_ends_when_its_token_does(ended_by: str):
    engine, clock, elapsed = MemoryEngine(), ManualClock(), ManualClock()
    gate = Gate(engine, WebSettings(), clock, elapsed=elapsed)
    made = await create_token(engine, "page", [Scope.READ], now=clock(), lifetime=60.0)
    feed = Feed(engine, gate.is_admitted, max_listeners=1)
    listening = feed.listen(made.token.caller())
    await anext(listening)
    await feed.update()
    assert (await anext(listening)).startswith(b"event: counts")
    if ended_by == "revoked":
        await revoke_token(engine, "page")
        elapsed.advance(1.0)
    else:
        clock.advance(60.0)
    await engine.add([new(1)])
    await feed.update()
    with pytest.raises(StopAsyncIteration):
        await anext(listening)


async def test_a_stream_contains_only_the_queues_of_its_token():
    engine = MemoryEngine()
    feed = Feed(engine, always, max_listeners=2)
    caller = Caller(id="1", name="page", kind="token", scopes=frozenset([Scope.READ]), limits=OURS)
    limited, whole = feed.listen(caller), feed.listen(LOCAL_CALLER)
    await anext(limited), await anext(whole)
    await engine.add([new(1, queue="ours"), *(new(number, queue="theirs") for number in range(2, 80))])
    await feed.update()
    counts, tasks = await anext(limited), await anext(limited)
    assert b'"queued":1' in counts and task_id(1).encode() in tasks and b"theirs" not in tasks
    assert b'"queued":79' in await anext(whole)
