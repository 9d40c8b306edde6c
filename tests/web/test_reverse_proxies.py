"""The server behind real proxies, with the configurations that the documentation gives."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from qo.engines.memory import MemoryEngine
from qo.web import WebSettings
from qo.web.callers import Scope
from qo.web.http.tokens import create_token
from tests.conditions import TIMEOUT
from tests.servers.plain_http import NO_CERTIFICATES
from tests.servers.proxies import NAME, caddy, nginx
from tests.web.serving import Served, served

PROXIES = {"nginx": nginx, "caddy": caddy}
# What makes a caller from elsewhere look like this machine to a server without tokens.
REWRITES_HOST = {
    "nginx": ("proxy_set_header Host $http_host;", "proxy_set_header Host 127.0.0.1;"),
    "caddy": ("\treverse_proxy ", "\trequest_header Host 127.0.0.1\n\treverse_proxy "),
}


@pytest.fixture(scope="module")
def api() -> Iterator[Served]:
    """With a token from the start: the server remembers for a second which tokens there are."""
    with served(MemoryEngine(), WebSettings(hosts=(NAME,))) as made:
        token = made.run(create_token(made.qo_client.engine, "test", [Scope.ADMIN], now=0.0))
        made.client.headers["authorization"] = f"Bearer {token.secret}"
        yield made


@pytest.fixture(scope="module", params=PROXIES)
def proxied(
    request: pytest.FixtureRequest, api: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of the proxy that calls it by its public name, with a token."""
    upstream = api.url.removeprefix("http://")
    with PROXIES[request.param](tmp_path_factory.mktemp(request.param), upstream) as url:
        port = url.rpartition(":")[2]
        headers = {"host": f"{NAME}:{port}", "authorization": api.client.headers["authorization"]}
        with httpx.Client(base_url=url, headers=headers, timeout=TIMEOUT, verify=NO_CERTIFICATES) as client:
            yield client


def test_a_proxy_passes_on_calls_with_a_token_and_only_these(proxied: httpx.Client):
    made = proxied.post("/api/v1/tasks", json={"task_type": "t"})
    assert made.status_code == 201
    assert proxied.get(f"/api/v1/tasks/{made.json()['task_id']}").json()["status"] == "queued"
    assert proxied.get("/api/v1/tasks", headers={"authorization": ""}).status_code == 401
    assert proxied.get("/ui/").status_code == 200
    assert proxied.get("/", follow_redirects=False).headers["location"] == "ui/"


def test_the_dashboard_acts_through_a_proxy_and_other_pages_do_not(proxied: httpx.Client):
    own = f"http://{proxied.headers['host']}"
    assert proxied.post("/api/tasks/resume", headers={"origin": own}).status_code == 200
    assert proxied.post("/api/tasks/resume", headers={"origin": "https://evil.example"}).status_code == 403


def test_bodies_as_large_as_the_limit_pass_and_larger_ones_do_not(proxied: httpx.Client):
    fits = {"tasks": [{"task_type": "t", "parameters": {"text": "x" * 100_000}}] * 10}
    assert proxied.post("/api/v1/tasks/bulk", json=fits).status_code == 201
    assert proxied.post("/api/v1/tasks", content=b"x" * 9 * 1024 * 1024).status_code == 413


def test_an_event_stream_passes_a_proxy_as_it_happens(proxied: httpx.Client):
    with proxied.stream("GET", "/api/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 2000"
        task_id = proxied.post("/api/v1/tasks", json={"task_type": "streamed"}).json()["task_id"]
        heard = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ["))
        assert any(task["task_id"] == task_id for tasks in heard for task in tasks)


@pytest.mark.parametrize("kind", PROXIES)
def test_a_server_without_tokens_is_not_open_behind_a_proxy_that_rewrites_host(
    kind: str, one_server: Served, tmp_path: Path
):
    upstream = one_server.url.removeprefix("http://")
    with PROXIES[kind](tmp_path, upstream, REWRITES_HOST[kind]) as url:
        assert httpx.get(f"{url}/healthz").status_code == 200  # the proxy reaches the server
        assert httpx.get(f"{url}/api/v1/tasks").status_code == 401
        assert httpx.post(f"{url}/api/v1/tasks", json={"task_type": "t"}).status_code == 401
        assert httpx.get(f"{url}/api/v1/events").status_code == 401
