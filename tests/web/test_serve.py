"""`qo serve` and `qo token`, as people call them."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

import qo
from qo.cli import main
from qo.errors import InvalidSetting, NewerFormat
from qo.model import PromotionTimes
from qo.web import Level, WebSettings
from qo.web.http.settings import read_priorities
from tests.engines.newer_build import NewerSqlite
from tests.web.serving import in_process

SOURCE = Path(qo.__file__).parents[1]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'qo.db'}"


def call(url: str, *args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [*args, "--url", url])
    assert result.exit_code == code, f"{args}: {result.output}\n{result.exception!r}"
    return result


def answer(url: str, *args: str) -> Any:
    return json.loads(call(url, *args, "--json").stdout)


@contextlib.contextmanager
def serving(url: str, *args: str) -> Iterator[str]:
    """A real server process; where it serves."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QO_")} | {"PYTHONPATH": str(SOURCE)}
    words = [sys.executable, "-m", "qo", "serve", "--url", url, "--port", "0", "--log-json", *args]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            lines = (json.loads(line) for line in process.stderr if line.startswith("{"))
            port = next(line["port"] for line in lines if "port" in line)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
        process.stderr.read()
    assert process.returncode in (0, -15), process.returncode


def test_a_server_acknowledges_nothing_into_a_deleted_file(url: str, tmp_path: Path):
    with serving(url) as base:
        tasks = f"{base}/api/v1/tasks"
        assert httpx.post(tasks, json={"task_type": "t"}).status_code < 300
        (tmp_path / "qo.db").rename(tmp_path / "away.db")
        refused = [httpx.post(tasks, json={"task_type": "t"}) for _ in range(3)]
        assert [answer.status_code for answer in refused] == [503] * 3  # why is in the log: clients need no paths
        assert httpx.get(f"{base}/readyz").status_code == 503
        (tmp_path / "away.db").rename(tmp_path / "qo.db")
        assert httpx.post(tasks, json={"task_type": "t"}).status_code < 300


def test_a_server_is_started_used_and_stopped(url: str):
    with serving(url) as base:
        task_id = httpx.post(f"{base}/api/v1/tasks", json={"task_type": "t"}).json()["task_id"]
        assert httpx.get(f"{base}/readyz").status_code == 200
        assert "uvicorn" not in httpx.get(f"{base}/healthz").headers.get("server", "")
    assert answer(url, "list")["tasks"][0]["id"] == task_id


def test_tokens_open_a_server_to_others_and_close_it_to_strangers(url: str):
    refused = call(url, "serve", "--host", "0.0.0.0", code=2)
    assert "qo token create" in refused.stderr
    secret = call(url, "token", "create", "--name", "ci", "--scopes", "submit,read").stdout.strip()
    with serving(url, "--host", "0.0.0.0", "--allowed-host", "queue.example.com") as base:
        assert httpx.get(f"{base}/api/v1/tasks").status_code == 401
        headers = {"authorization": f"Bearer {secret}", "host": "queue.example.com"}
        assert httpx.get(f"{base}/api/v1/tasks", headers=headers).status_code == 200
        assert httpx.post(f"{base}/api/tasks/pause", headers=headers).status_code == 403


def test_tokens_are_created_listed_and_revoked(url: str):
    made = answer(url, "token", "create", "--name", "ci", "--scopes", "read", "--expires", "30d")
    assert made["token"].startswith("qo_") and made["scopes"] == ["read"] and made["expires_at"] > made["created_at"]
    listed = answer(url, "token", "list")
    assert [token["name"] for token in listed] == ["ci"] and "token" not in listed[0] and "digest" not in listed[0]
    assert made["token"] not in call(url, "token", "list").stdout
    call(url, "token", "create", "--name", "ci", "--scopes", "read", code=2)
    call(url, "token", "create", "--name", "x", "--scopes", "root", code=2)
    call(url, "token", "create", "--name", "x y", "--scopes", "read", code=2)
    assert answer(url, "token", "revoke", "ci")["name"] == "ci"
    call(url, "token", "revoke", "ci", code=3)
    assert "servers reject every request" in call(url, "token", "list").stdout
    call(url, "token", "reset", "--yes")
    assert "shut" not in call(url, "token", "list").stdout


def test_a_token_can_be_limited_and_shows_who_created_it(url: str):
    made = answer(
        url, "token", "create", "--name", "m", "--scopes", "work", "--queue", "b", "--queue", "a", "--type", "t"
    )
    assert made["queues"] == ["a", "b"] and made["types"] == ["t"]
    (listed,) = answer(url, "token", "list")
    assert "@" in listed["created_by"] and listed["last_used_at"] is None
    assert "a,b" in call(url, "token", "list").stdout
    refused = call(url, "token", "create", "--name", "e", "--scopes", "engine", "--queue", "a", code=2)
    assert "cannot be limited" in refused.stderr


async def test_a_server_without_a_monitor_learns_of_a_newer_qo_from_a_request(url: str) -> None:
    seen: list[NewerFormat] = []
    task = {"task_type": "t", "parameters": {}}
    async with in_process(qo.connect(url), on_outdated=seen.append) as http:
        assert (await http.post("/api/v1/tasks", json=task)).status_code == 201
        await NewerSqlite(url).upgrade(is_additive=False)
        assert (await http.post("/api/v1/tasks", json=task)).status_code == 503
    assert "use qo 9.9.0 or newer" in str(seen[0])


def test_wrong_options_are_refused_before_anything_is_served(url: str, tmp_path: Path):
    (tmp_path / "bad.json").write_text('{"high": {"max_retries": 1}}')
    call(url, "serve", "--origin", "example.com", code=2)
    call(url, "serve", "--rate-limit", "-1", code=2)
    call(url, "serve", "--priority-config", str(tmp_path / "bad.json"), code=2)
    call(url, "serve", "--priority-config", str(tmp_path / "missing.json"), code=2)


def test_a_priority_configuration_changes_what_levels_give(tmp_path: Path):
    path = tmp_path / "priorities.json"
    path.write_text(
        json.dumps(
            {
                "high": {"max_retries": 9, "timeout_seconds": 30},
                "starvation_prevention": {
                    "low_to_medium_seconds": 60,
                    "medium_to_high_seconds": 90,
                    "promotion_interval_seconds": 60,
                    "promotion_batch_size": 100,
                },
                "timeout_growth": 2,
            }
        )
    )
    settings = read_priorities(path, WebSettings())
    assert settings.levels["high"] == Level(max_retries=9, timeout_seconds=30)
    assert settings.levels["low"] == Level(max_retries=2, timeout_seconds=900)
    assert settings.ageing == PromotionTimes(low_to_medium=60, medium_to_high=90) and settings.timeout_growth == 2


def test_the_configuration_in_the_spec_is_the_default(tmp_path: Path):
    spec = """{
      "high": {"max_retries": 5, "timeout_seconds": 300},
      "medium": {"max_retries": 3, "timeout_seconds": 600},
      "low": {"max_retries": 2, "timeout_seconds": 900},
      "starvation_prevention": {"low_to_medium_seconds": 600, "medium_to_high_seconds": 1200,
                                "promotion_interval_seconds": 60, "promotion_batch_size": 100}
    }"""
    (tmp_path / "spec.json").write_text(spec)
    assert read_priorities(tmp_path / "spec.json", WebSettings()) == WebSettings()


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"urgent": {"max_retries": 1, "timeout_seconds": 1}}',
        '{"high": {"max_retries": -1, "timeout_seconds": 1}}',
        '{"high": {"max_retries": 1, "timeout_seconds": 0}}',
        '{"starvation_prevention": {"low_to_medium_seconds": 600, "medium_to_high_seconds": -1}}',
        '{"starvation_prevention": {"low_to_medium_seconds": "soon"}}',
        '{"timeout_growth": 0}',
        '{"high": null, "high": null}',
    ],
)
def test_senseless_configurations_are_refused(tmp_path: Path, text: str):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InvalidSetting):
        read_priorities(tmp_path / "bad.json", WebSettings())
