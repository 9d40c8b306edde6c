"""What is refused, and how: always a 4xx with a sentence, never a trace."""

import base64
import json
import socket
from collections.abc import Mapping, Sequence

import pytest

from qo.codec import parse_json
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidTask, StorageError
from qo.model import Change, Status
from qo.testing.samples import new
from qo.testing.samples import task_id as id_of
from tests.conditions import TIMEOUT
from tests.web.serving import Served, served

NOWHERE = "00000000-0000-8000-8000-000000000000"
JSON = {"content-type": "application/json"}
DEEP = "[" * 70 + "]" * 70
BAD_VALUES = {
    "NaN": "NaN",
    "infinity": "Infinity",
    "minus infinity": "-Infinity",
    "a huge number": "1e999",
    "an integer of 64 bits": str(2**63),
    "an integer below": str(-(2**63) - 1),
    "an absurd integer": "9" * 5000,
    "a lone surrogate": '"\\ud800"',
    "NUL": '"a\\u0000b"',
    "a key twice": '{"a": 1, "a": 2}',
    "a key with NUL": '{"a\\u0000": 1}',
    "too deep": DEEP,
    "very deep": "[" * 100_000,
    "no JSON": "{'a': 1}",
    "a control character": '"a\nb"',
    "too large": json.dumps("x" * (256 * 1024)),
}


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_bad_payloads_are_refused_alike(one_server: Served, value: str):
    for path, body in (
        ("/api/v1/tasks", f'{{"task_type": "t", "parameters": {{"x": {value}}}}}'),
        ("/api/v1/tasks/bulk", f'{{"tasks": [{{"task_type": "t", "parameters": {{"x": {value}}}}}]}}'),
        ("/api/tasks", f'{{"type": "t", "payload": {{"x": {value}}}}}'),
    ):
        answer = one_server.client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400, f"{path}: {answer.status_code}"
        assert answer.json().keys() == {"error", "code", "field"} and answer.json()["code"] == "invalid"
    if value != BAD_VALUES["too large"]:  # the size is the queue's business, not the reader's
        with pytest.raises(InvalidTask):
            parse_json(value)


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe", b"null", b"[]", b'"text"', b"5", b'{"task_type": null}', b"\xef\xbb\xbf{}"]
)
def test_bodies_that_are_no_submission_are_refused(one_server: Served, body: bytes):
    for path in ("/api/v1/tasks", "/api/v1/tasks/bulk", "/api/v1/tasks/replay", "/api/tasks", "/api/tasks/rate-limit"):
        answer = one_server.client.post(path, content=body, headers=JSON)
        assert answer.status_code == 400, path


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"task_type": "a b"}, "task_type"),
        ({"task_type": "../etc"}, "task_type"),
        ({"task_type": "x" * 256}, "task_type"),
        ({"task_type": "t", "priority": "urgent"}, "priority"),
        ({"task_type": "t", "priority": 0}, "priority"),
        ({"task_type": "t", "parameters": []}, "parameters"),
        ({"task_type": "t", "parameters": {"$base64": "!"}}, "parameters"),
        ({"task_type": "t", "required_capabilities": "gpu"}, "required_capabilities"),
        ({"task_type": "t", "required_capabilities": ["a b"]}, "required_capabilities"),
        ({"task_type": "t", "timeout_seconds": 0}, "timeout_seconds"),
        ({"task_type": "t", "timeout_seconds": -1}, "timeout_seconds"),
        ({"task_type": "t", "timeout_seconds": 1e300}, "timeout_seconds"),
        ({"task_type": "t", "timeout_seconds": True}, "timeout_seconds"),
        ({"task_type": "t", "max_retries": 1.5}, "max_retries"),
        ({"task_type": "t", "max_retries": 10_001}, "max_retries"),
        ({"task_type": "t", "idempotency_key": ""}, "idempotency_key"),
        ({"task_type": "t", "idempotency_key": "x" * 257}, "idempotency_key"),
        ({"task_type": "t", "queue": "<script>"}, "queue"),
        ({"task_type": "t", "run_at": "tomorrow"}, "run_at"),
        ({"task_type": "t", "lease_id": "x"}, "lease_id"),
    ],
)
def test_a_refusal_names_the_field(one_server: Served, body: dict[str, object], field: str):
    answer = one_server.post("/api/v1/tasks", body)
    assert answer.status_code == 400 and answer.json()["field"] == field, answer.text


def test_queries_are_refused_by_name(one_server: Served):
    for query in ("limit=0", "limit=501", "status=pending", "after=nonsense", "worker=a%20b", "type=%00", "sort=1"):
        assert one_server.client.get(f"/api/v1/tasks?{query}").status_code == 400, query
    for query in ("wait=-1", "wait=nan", "wait=soon"):
        answer = one_server.client.get(f"/api/v1/tasks/{NOWHERE}/result?{query}")
        assert answer.status_code == 400, query


def test_a_wrong_word_is_answered_with_the_words_that_are_accepted(one_server: Served):
    def refusal(method: str, path: str, body: object = None) -> str:
        answer = one_server.client.request(method, path, json=body)
        assert answer.status_code == 400, answer.text
        return str(answer.json()["error"])

    task = {"task_type": "t"}
    words = "cancelled, completed, dead_letter, executing, failed, queued"
    assert refusal("GET", "/api/v1/tasks?status=bogus") == f"status: 'bogus' is not one of: {words}"
    assert refusal("GET", "/api/v1/dashboard/tasks?sort=bogus").endswith(
        "attempts, available, failures, newest, rank, updated"
    )
    assert refusal("POST", "/api/v1/tasks", task | {"priority": "bogus"}).endswith("is not one of: high, low, medium")
    bulk = {"tasks": [task, task | {"unique": {"until": "bogus"}}]}
    expected = "tasks[1].unique.until: 'bogus' is not one of: finished, started"
    assert refusal("POST", "/api/v1/tasks/bulk", bulk) == expected
    assert refusal("POST", "/api/v1/tasks", task | {"unique": {"by": "bogus"}}).endswith("is not one of: a list, args")
    assert (
        refusal("POST", "/api/v1/tasks/cancel", {"status": ["bogus"]}) == f"status[0]: 'bogus' is not one of: {words}"
    )
    assert refusal("GET", "/api/tasks?status=bogus").endswith("is not one of: completed, failed, pending, processing")


def test_unknown_tasks_are_not_found(one_server: Served):
    for method, path in (
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/history"),
        ("GET", "/result"),
        ("POST", "/replay"),
        ("POST", "/archive"),
    ):
        for task_id in (NOWHERE, "nope"):
            answer = one_server.client.request(method, f"/api/v1/tasks/{task_id}{path}")
            assert answer.status_code == 404 and answer.json()["code"] == "not_found"


def test_paths_and_methods_that_are_not_there(one_server: Served):
    assert one_server.client.get("/api/v2").status_code == 404
    answer = one_server.client.put("/api/v1/tasks/x")
    assert answer.status_code == 405 and set(answer.headers["allow"].split(", ")) == {"GET", "DELETE", "OPTIONS"}


def test_a_body_must_say_that_it_is_json(one_server: Served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonp", "multipart/form-data"):
        answer = one_server.client.post("/api/v1/tasks", content=b'{"task_type": "t"}', headers={"content-type": kind})
        assert answer.status_code == 415, kind


def test_large_bodies_are_refused_whether_announced_or_not(one_server: Served):
    body = b'{"task_type": "t", "parameters": {"x": "%s"}}' % (b"x" * 1024 * 1024)
    assert one_server.client.post("/api/v1/tasks", content=body, headers=JSON).status_code == 413
    pieces = (body[start : start + 65536] for start in range(0, len(body), 65536))
    assert one_server.client.post("/api/v1/tasks", content=pieces, headers=JSON).status_code == 413


@pytest.mark.parametrize("path", ["/api/v1/tasks", "/internal/workers/register", "/nowhere"])
def test_a_refusal_reaches_a_client_that_sends_everything_before_it_reads(one_server: Served, path: str):
    size = 20 * 1024 * 1024
    host, port = one_server.url.removeprefix("http://").split(":")
    fields = ("Connection: close", "Content-Type: application/json", f"Content-Length: {size}")
    head = "\r\n".join((f"POST {path} HTTP/1.1", f"Host: {host}", *fields, "", ""))
    with socket.create_connection((host, int(port)), timeout=TIMEOUT) as line:
        line.sendall(head.encode())
        for _ in range(20):
            line.sendall(b" " * (size // 20))
        answer = line.recv(100_000)
    assert answer.startswith(b"HTTP/1.1 404" if path == "/nowhere" else b"HTTP/1.1 413"), answer


UNREADABLE = {"deep": b"[" * 5_000 + b"]" * 5_000, "no text": b'"\xff"', "no JSON": b"{broken", "nothing": b""}


def test_an_unreadable_payload_hides_no_other_task_and_is_returned_as_bytes():
    """Written into the store by another program; this one refuses it."""
    engine = MemoryEngine()
    with served(engine) as api:
        api.run(engine.add([new(n, payload=data, queue="default") for n, data in enumerate(UNREADABLE.values())]))
        api.run(engine.add([new(9, payload=b'{"a": 1}', queue="default")]))
        shown = {
            id_of(n): {"$base64": base64.b64encode(data).decode()} for n, data in enumerate(UNREADABLE.values())
        } | {id_of(9): {"a": 1}}
        v1 = api.client.get("/api/v1/tasks").json()["tasks"]
        assert {task["task_id"] for task in v1} == shown.keys()
        managed = api.client.get("/api/tasks").json()["tasks"]
        assert {task["id"]: task["payload"] for task in managed} == shown
        for each, payload in shown.items():
            assert api.client.get(f"/api/v1/tasks/{each}").json()["payload"]["parameters"] == payload
            assert api.client.get(f"/api/tasks/{each}").json()["payload"] == payload
            assert api.client.get(f"/api/v1/dashboard/tasks/{each}").json()["payload"] == payload
        worker = api.post("/internal/workers/register", {}).json()["worker_id"]
        polled = api.post(f"/internal/workers/{worker}/poll", {"available_capacity": 10}).json()["tasks"]
        assert {task["task_id"]: task["parameters"] for task in polled} == shown


class Faltering(MemoryEngine):
    """Raises for the calls that a test names."""

    failing: Mapping[str, Exception] = {}

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        self._falter("apply")
        return await super().apply(changes)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        self._falter("write_note")
        return await super().write_note(name, data, expected=expected)

    def _falter(self, call: str) -> None:
        if call in self.failing:
            raise self.failing[call]


def test_a_poll_that_cannot_answer_hands_back_what_it_claimed(caplog: pytest.LogCaptureFixture):
    engine = Faltering()
    with served(engine) as api:
        api.run(engine.add([new(n) for n in range(3)]))
        worker = api.post("/internal/workers/register", {}).json()["worker_id"]
        before = api.run(engine.get([id_of(n) for n in range(3)]))
        engine.failing = {"write_note": StorageError("away")}  # it keeps the types that workers have met
        for body in ({"available_capacity": 5}, {"available_capacity": 5, "request_id": "a" * 32}):
            assert api.post(f"/internal/workers/{worker}/poll", body).status_code == 503
        after = api.run(engine.get([id_of(n) for n in range(3)]))
        for was, now in zip(before, after, strict=True):
            assert was is not None and now is not None
            assert (now.status, now.failures, now.rank) == (Status.PENDING, 0, was.rank)
        engine.failing = {"write_note": StorageError("away"), "apply": StorageError("away")}
        assert api.post(f"/internal/workers/{worker}/poll", {"available_capacity": 1}).status_code == 503
        assert "cannot release 1 task before the lease expires" in caplog.text
        engine.failing = {}
        assert len(api.post(f"/internal/workers/{worker}/poll", {"available_capacity": 5}).json()["tasks"]) == 2


def test_a_damaged_task_is_named_and_hides_no_other():
    engine = MemoryEngine()
    with served(engine) as api:
        ids = [
            api.client.post("/api/v1/tasks", json={"task_type": "t", "parameters": {}}).json()["task_id"]
            for _ in range(2)
        ]
        engine.damage(ids[0])
        for path in (f"/api/v1/tasks/{ids[0]}", f"/api/tasks/{ids[0]}", f"/api/v1/dashboard/tasks/{ids[0]}"):
            answer = api.client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (500, "damaged"), path
            assert f"task {ids[0]} is damaged" in answer.json()["error"]
        assert api.client.get(f"/api/v1/tasks/{ids[1]}").status_code == 200
        assert api.client.get("/api/v1/dashboard/overview").status_code == 200
