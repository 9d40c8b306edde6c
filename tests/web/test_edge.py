"""Hosts, origins, headers, logs."""

import logging

import pytest

from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting
from qo.web import WebSettings
from qo.web.edge import Edge, host_name
from tests.web.serving import Served, served

PAGE = "https://dashboard.example.com"


def test_only_known_hosts_are_answered():
    with served(MemoryEngine(), WebSettings(hosts=("queue.example.com",))) as api:
        for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "queue.example.com:443", "LOCALHOST"):
            assert api.client.get("/healthz", headers={"host": host}).status_code == 200, host
        for host in ("evil.com", "localhost.evil.com", "evil.com:80", "", "127.0.0.1.nip.io", "[::2]"):
            assert api.client.get("/healthz", headers={"host": host}).status_code == 400, host


def test_pages_from_elsewhere_may_not_call(one_server: Served):
    for origin in ("http://evil.com", "null", "http://localhost:1", "https://127.0.0.1"):
        answer = one_server.client.post("/api/tasks/pause", headers={"origin": origin})
        assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    own = {"origin": one_server.url}
    assert one_server.client.post("/api/tasks/resume", headers=own).status_code == 200


def test_an_origin_is_allowed_exactly():
    with served(MemoryEngine(), WebSettings(origins=(PAGE,))) as api:
        answer = api.client.get("/api/v1/tasks", headers={"origin": PAGE})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in answer.headers and answer.headers["vary"] == "Origin"
        ask = {"origin": PAGE, "access-control-request-method": "DELETE"}
        preflight = api.client.options("/api/v1/tasks/x", headers=ask)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-methods"] == "GET, POST, DELETE"
        assert "Authorization" in preflight.headers["access-control-allow-headers"]
        for other in (PAGE + ".evil.com", PAGE.replace("https", "http"), PAGE + ":8443", PAGE.upper()):
            answer = api.client.get("/api/v1/tasks", headers={"origin": other})
            assert answer.status_code == 403, other


def test_origins_are_written_as_browsers_write_them():
    for origin in ("*", "example.com", "https://example.com/", "https://", "file:///x"):
        with pytest.raises(InvalidSetting):
            Edge(WebSettings(origins=(origin,)))


def test_every_answer_is_guarded(one_server: Served):
    for path in ("/api/v1/tasks", "/nope", "/healthz", "/openapi.json", "/docs"):
        headers = one_server.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"] and "set-cookie" not in headers


def test_the_docs_page_runs_nothing(one_server: Served):
    page = one_server.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text and "http" not in page.text.replace("HTTP", "")
    assert "/api/v1/tasks/{task_id}" in page.text
    assert "style-src 'sha256-" in page.headers["content-security-policy"]


def test_hosts_lose_their_port():
    assert [host_name(host) for host in ("a:80", "[::1]:80", "a", "[::1]", "")] == ["a", "[::1]", "a", "[::1]", ""]


def test_each_request_leaves_one_line_with_its_transition(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "qo.web"), served(MemoryEngine()) as api:
        task_id = api.post("/api/v1/tasks", {"task_type": "t"}).json()["task_id"]
        api.client.delete(f"/api/v1/tasks/{task_id}")
        api.client.get("/healthz")
    told = [vars(record) for record in caplog.records if "http_status" in vars(record)]
    lines = [line for line in told if line["path"] != "/docs"]  # another server may still tell of another test
    assert [line["http_status"] for line in lines] == [201, 200]
    assert [line["transition"] for line in lines] == ["queued", "cancelled"]
    assert {line["task_id"] for line in lines} == {task_id} and lines[0]["token"] == "anyone"
