"""Hosts, origins, headers, logs."""

import logging
import sys

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import InvalidSetting
from qo.web import WebSettings, create_app
from qo.web.http.request import host_name, is_forwarded
from tests.web.raw_http import say
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


@pytest.mark.parametrize("path", ["/api/v1/tasks//replay", "/api/tasks//retry"])
def test_an_empty_id_is_refused_and_does_not_act_on_all_tasks(one_server: Served, path: str):
    answer = one_server.client.post(path, json={})
    assert answer.status_code == 404
    assert answer.json() == {"error": f"the path '{path}' has an empty segment", "code": "not_found"}


def test_an_origin_is_allowed_exactly():
    with served(MemoryEngine(), WebSettings(origins=(PAGE,))) as api:
        answer = api.client.get("/api/v1/tasks", headers={"origin": PAGE})
        assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in answer.headers and answer.headers["vary"] == "Origin"
        assert answer.headers["access-control-expose-headers"] == "Date"  # for the ages on the page
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
            create_app(Client(MemoryEngine()), settings=WebSettings(origins=(origin,)))


def test_every_answer_is_guarded(one_server: Served):
    for path in ("/api/v1/tasks", "/nope", "/healthz", "/openapi.json", "/docs"):
        headers = one_server.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer" and headers["cache-control"] == "no-store"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "default-src 'none'" in headers["content-security-policy"] and "set-cookie" not in headers


def test_the_description_of_the_api_is_built_once_for_all_requests(one_server: Served):
    answer = one_server.client.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json" and "/api/v1/tasks" in answer.json()["paths"]
    first, second = (create_app(Client(MemoryEngine())).state.openapi_document for _ in range(2))
    assert answer.content == first() and first() is second()


def test_the_docs_page_runs_nothing(one_server: Served):
    page = one_server.client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text and "http" not in page.text.replace("HTTP", "")
    assert "/api/v1/tasks/{task_id}" in page.text
    assert "style-src 'sha256-" in page.headers["content-security-policy"]


def test_hosts_lose_their_port():
    hosts = ("a:80", "[::1]:80", "A", "[::1]", "my_service.internal-2:65535")
    assert [host_name(host) for host in hosts] == ["a", "[::1]", "a", "[::1]", "my_service.internal-2"]


def test_an_invalid_host_is_refused():
    bad = [
        *("", ":80", "localhost:", "localhost:x", "localhost:1:2", "localhost:@evil.com", "u@localhost", "localhost/x"),
        *("localhost:65536", "[::1", "[::1]x", "[::1]:", "::1", "local host", "localhost#", "localhost,evil.com", "-a"),
    ]
    assert [host for host in bad if host_name(host) is not None] == []


@pytest.mark.parametrize(
    "hosts", [("localhost:@evil.com",), ("[::1]x",), ("localhost", "localhost"), ("localhost", "evil.com"), ()]
)
def test_a_request_has_one_host_and_it_is_well_formed(one_server: Served, hosts: tuple[str, ...]):
    lines = ["GET /healthz HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", ""]
    assert say(one_server, "\r\n".join(lines).encode()).status == 400


def test_allowed_hosts_are_names():
    for host in ("https://example.com", "*", "*.example.com", "a b", ""):
        with pytest.raises(InvalidSetting):
            create_app(Client(MemoryEngine()), settings=WebSettings(hosts=(host,)))
    create_app(Client(MemoryEngine()), settings=WebSettings(hosts=("Queue.Example.com:8443",)))


def fetch(site: str, mode: str, dest: str) -> dict[str, str]:
    return {"sec-fetch-site": site, "sec-fetch-mode": mode, "sec-fetch-dest": dest}


def test_a_browser_is_answered_for_our_own_pages_and_for_its_user(one_server: Served):
    for site in ("same-origin", "none"):
        for mode, dest in (("cors", "empty"), ("navigate", "document"), ("no-cors", "script")):
            answer = one_server.client.get("/api/v1/tasks", headers=fetch(site, mode, dest))
            assert answer.status_code == 200, (site, mode, dest)


def test_a_link_or_a_redirect_from_elsewhere_leads_here(one_server: Served):
    """The last step of a login at another site is such a redirect."""
    for site in ("cross-site", "same-site"):
        for path in ("/ui/", "/", "/docs"):
            answer = one_server.client.get(path, headers=fetch(site, "navigate", "document"), follow_redirects=True)
            assert answer.status_code == 200, (site, path)


def test_a_page_from_elsewhere_gets_nothing_by_any_other_way(one_server: Served):
    """Images, scripts and frames are asked for without an Origin, so that their requests look like a user's own."""
    ways = (
        ("no-cors", "image"),
        ("no-cors", "script"),
        ("navigate", "iframe"),
        ("cors", "empty"),
        ("websocket", "empty"),
    )
    for site in ("cross-site", "same-site", "something-new"):
        for mode, dest in ways:
            for path in ("/api/v1/tasks", "/ui/config.json", "/metrics"):
                answer = one_server.client.get(path, headers=fetch(site, mode, dest))
                assert answer.status_code == 403, (site, mode, dest, path)
        form = fetch(site, "navigate", "document")
        assert one_server.client.post("/api/tasks/pause", headers=form).status_code == 403


def test_an_allowed_origin_may_call_across_sites():
    with served(MemoryEngine(), WebSettings(origins=(PAGE,))) as api:
        headers = {"origin": PAGE, **fetch("cross-site", "cors", "empty")}
        assert api.client.get("/api/v1/tasks", headers=headers).status_code == 200
        ask = {**headers, "access-control-request-method": "POST"}
        assert api.client.options("/api/v1/tasks", headers=ask).status_code == 204


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


def test_the_files_and_the_polls_of_the_dashboard_are_not_logged_at_info(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "qo.web"), served(MemoryEngine()) as api:
        for path in ("/ui/", "/ui/main.js", "/api/v1/dashboard/overview", "/ui/missing.js", "/api/v1/tasks"):
            api.client.get(path)
    assert [vars(record)["path"] for record in caplog.records if "http_status" in vars(record)] == [
        "/ui/missing.js",
        "/api/v1/tasks",
    ]


def test_long_names_of_headers_are_checked_and_not_kept():
    for name, is_proxy in ((b"x-forwarded-" + b"a" * 5000, True), (b"x-own-" + b"a" * 5000, False)):
        kept_by = sys.getrefcount(name)
        assert is_forwarded([(name, b"1")], "1.1") is is_proxy
        assert sys.getrefcount(name) == kept_by
