"""Commands called in this process, and real ones in processes of their own, on real SQLite files."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import qo
from qo.cli import main
from tests.conditions import TIMEOUT, wait_within

SOURCE = Path(qo.__file__).parents[1]
PROCESS_TIMEOUT = 60.0  # seconds; the machine may be busy

APP = """
import asyncio, ctypes, os, time
from pathlib import Path
import qo

app = qo.App()
quick = qo.RetryPolicy(initial=0.05, jitter=0.0)

@app.task
async def add(a: int, b: int) -> int:
    return a + b

@app.task(retry=quick)
def broken() -> None:
    raise ValueError("[bold]no[/bold] \\x1b[31mluck")

@app.task
async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"

@app.task(retry=quick)
async def hold_once() -> str:
    marker = Path("held")
    if marker.exists():
        return "free"
    marker.touch()
    await asyncio.Event().wait()

@app.task(retry=quick)
def die_once() -> str:
    marker = Path("died")
    if not marker.exists():
        marker.touch()
        ctypes.CDLL(None)._exit(0)  # not Python's, which a worker confines
    return "alive"

empty = qo.App()
nothing = 42
VERSION = "one"

@app.task
def version() -> str:
    return VERSION
"""


class Qo:
    """Calls `qo` in this process; `.json(...)` expects success and returns the document."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *args: str, code: int = 0, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, ["--url", self.url, *args], input=input)
        assert result.exit_code == code, f"{args}: {result.exit_code}\n{result.output}\n{result.exception!r}"
        return result

    def json(self, *args: str, code: int = 0, input: str | bytes | None = None) -> Any:
        return json.loads(self(*args, "--json", code=code, input=input).stdout)

    def error(self, *args: str, code: int, input: str | bytes | None = None) -> Any:
        result = self(*args, "--json", code=code, input=input)
        return json.loads(result.stderr)

    def submit(self, kind: str = "add", *args: str) -> str:
        task_id: str = self.json("submit", "--type", kind, *args)["id"]
        return task_id


class Processes:
    """Real `qo` processes in a folder that holds `jobs.py`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QO_")}
        with (self.folder / f"log-{len(self._started)}").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "qo", "--url", self.url, *args],
                cwd=self.folder,
                env=environment | {"PYTHONPATH": str(SOURCE)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._started.append(process)
        return process

    def run(self, *args: str, code: int = 0) -> str:
        process = self.start(*args)
        out, _ = process.communicate(timeout=PROCESS_TIMEOUT)
        assert process.returncode == code, f"{args}: {process.returncode}\n{out}\n{self.log(process)}"
        return out

    def log(self, process: subprocess.Popen[str]) -> str:
        return (self.folder / f"log-{self._started.index(process)}").read_text()

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            if process.stdout:
                process.stdout.close()


def until(test: Callable[[], Any], *, patience: float = TIMEOUT) -> Any:
    """What `test` answers once it answers something."""
    return wait_within(patience, test)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    return until


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("QO_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def call(tmp_path: Path) -> Qo:
    return Qo(f"sqlite:///{tmp_path / 'qo.db'}")


@pytest.fixture
def processes(tmp_path: Path, call: Qo) -> Iterator[Processes]:
    (tmp_path / "jobs.py").write_text(APP)
    started = Processes(tmp_path, call.url)
    yield started
    started.end()
