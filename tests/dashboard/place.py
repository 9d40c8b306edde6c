"""A queue with a real `qo serve` over it, and a real worker: each a process of its own."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.conditions import wait_until
from tests.servers.plain_http import NO_CERTIFICATES
from tests.servers.process import ROOT, free_ports, running

TIMEOUT = 20.0  # seconds for anything to happen


class Place:
    def __init__(self, url: str, store: str, folder: Path) -> None:
        self.url, self.store, self.folder = url, store, folder
        self.client = httpx.Client(base_url=url, timeout=TIMEOUT, verify=NO_CERTIFICATES)
        self.headers: dict[str, str] = {}

    def submit(self, type: str, payload: object = None, **options: Any) -> str:
        body = {"task_type": type, "parameters": payload, **options}
        answer = self.client.post("/api/v1/tasks", json=body, headers=self.headers)
        assert answer.is_success, answer.text
        return str(answer.json()["task_id"])

    def submit_many(self, tasks: list[dict[str, Any]]) -> None:
        answer = self.client.post("/api/v1/tasks/bulk", json={"tasks": tasks}, headers=self.headers)
        assert answer.is_success, answer.text

    def get(self, path: str, **params: Any) -> Any:
        answer = self.client.get(f"/api/v1/dashboard/{path}", params=params, headers=self.headers)
        assert answer.is_success, answer.text
        return answer.json()

    def until(self, task_id: str, status: str) -> dict[str, Any]:
        def has_status() -> dict[str, Any] | None:
            task: dict[str, Any] = self.get(f"tasks/{task_id}")
            return task if task["status"] == status else None

        return wait_until(has_status)

    def reports(self) -> int:
        """What browsers refused on our pages so far."""
        text = self.client.get("/metrics", headers=self.headers).text
        found = re.search(r"^dashboard_csp_reports_total (\d+)", text, re.MULTILINE)
        assert found, text
        return int(found[1])

    def file(self, name: str) -> Path:
        """A file a task `hold` waits for to go."""
        path = self.folder / name
        path.touch()
        return path

    @contextlib.contextmanager
    def worker(self, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "qo", "worker", "tests.dashboard.handlers:app", "--id", name, *options]
        quick = ["--heartbeat", "0.3", "--poll", "0.1", "--lease", "30", "--url", self.store]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *quick],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def place(folder: Path, *options: str) -> Iterator[Place]:
    (port,) = free_ports(1)
    store = f"sqlite:///{folder / 'qo.db'}"
    command = [sys.executable, "-m", "qo", "serve", "--url", store, "--port", str(port), *options]
    with running(command, folder, f"http://127.0.0.1:{port}/readyz"):
        made = Place(f"http://127.0.0.1:{port}", store, folder)
        try:
            yield made
        finally:
            made.client.close()
