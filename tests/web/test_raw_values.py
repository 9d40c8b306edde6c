"""Raw bytes over HTTP: JSON cannot carry them, so every dialect writes and reads {"$base64": "..."}."""

from typing import Any

import pytest

from tests.web.serving import Served

RAW, SHOWN = b"\x00\x89PNG", {"$base64": "AIlQTkc="}
SUBMITTING = {
    "v1": ("/api/v1/tasks", {"task_type": "raw", "parameters": SHOWN}),
    "management": ("/api/tasks", {"type": "raw", "payload": SHOWN}),
}


@pytest.mark.parametrize("dialect", SUBMITTING)
def test_bytes_submitted_over_http_reach_a_consumer_as_bytes(one_server: Served, dialect: str) -> None:
    path, body = SUBMITTING[dialect]
    assert one_server.post(path, body).status_code in (200, 201, 202)
    assert one_server.take("raw").payload == RAW


def test_every_dialect_shows_bytes_alike(one_server: Served) -> None:
    submitted = one_server.run(one_server.qo_client.enqueue("shown", RAW))
    one_server.complete(RAW, "shown")

    def read(path: str) -> Any:
        answer = one_server.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    v1 = read(f"/api/v1/tasks/{submitted.id}")
    assert (v1["payload"]["parameters"], v1["result"]) == (SHOWN, SHOWN)
    managed = read(f"/api/tasks/{submitted.id}")
    assert (managed["payload"], managed["result"]) == (SHOWN, SHOWN)
    page = read(f"/api/v1/dashboard/tasks/{submitted.id}")
    assert (page["payload"], page["result"]) == (SHOWN, SHOWN)
