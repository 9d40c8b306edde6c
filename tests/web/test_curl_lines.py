"""Every curl line of docs/http.md is run, and answers as the page says: with success."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from qo.engines.sqlite import SqliteEngine
from tests.web.serving import Served, served

PAGE = (Path(__file__).parents[2] / "docs" / "http.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_curl_line_works(tmp_path: Path):
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) > 25
    script = 'set -eu\ncurl() { command curl --fail-with-body --max-time 20 "$@"; }\n' + "\n".join(lines)
    with served(SqliteEngine(tmp_path / "qo.db")) as api:
        ended = subprocess.run(
            ["bash", "-c", script],
            env={"QO": api.url, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


def test_every_route_is_on_the_page(one_server: Served):
    curls = (
        PAGE.replace("$ID", "{task_id}")
        .replace("web-1", "{worker_id}")
        .replace("$WORKER", "{worker_id}")
        .replace("nightly", "{name}")
        .replace("batches/reports-1", "batches/{name}")
        .replace("import-353bb50098a7b85995c0", "{workflow_id}")
    )
    for path in one_server.client.get("/openapi.json").json()["paths"]:
        assert f"$QO{path}" in curls, path


@pytest.mark.parametrize("block", blocks("json"))
def test_the_json_is_json(block: str):
    json.loads(block)
