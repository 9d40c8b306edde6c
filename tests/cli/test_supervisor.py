"""A worker process that a handler holds hostage is replaced."""

import os
import signal
from typing import Any

import pytest

from tests.cli.conftest import PROCESS_TIMEOUT

HOSTILE = """
import asyncio, re
import qo
from qo.app import background_of

app = qo.App()

@app.task(timeout=1, max_retries=1, retry=qo.RetryPolicy(initial=0.05, jitter=0.0))
def regex() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")

@app.task(max_retries=1, retry=qo.RetryPolicy(initial=0.05, jitter=0.0))
def cancel_worker() -> None:
    async def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
    background_of(app).run(cancel_all())

@app.task(max_retries=0)
def fine() -> str:
    return "fine"
"""
QUICK = ("--poll", "0.2", "--check-interval", "1", "--concurrency", "2")


@pytest.fixture
def hostile(processes: Any) -> str:
    (processes.folder / "hostile.py").write_text(HOSTILE)
    return "hostile:app"


def test_handlers_that_hold_the_interpreter_or_cancel_the_work_of_their_worker_are_charged(
    call: Any, processes: Any, hostile: str, eventually: Any
) -> None:
    holder = call.submit("regex", "--max-retries", "1", "--timeout", "1")
    worker = processes.start("worker", hostile, *QUICK)
    eventually(lambda: call.json("status", holder)["status"] == "failed")
    task = call.json("status", holder)
    assert (task["failures"], task["attempt"]) == (2, 2)  # the second time in a process of its own
    assert "did not respond" in processes.log(worker)
    canceller = call.submit("cancel_worker", "--max-retries", "1")
    eventually(lambda: call.json("status", canceller)["status"] == "failed")
    task = call.json("status", canceller)
    assert (task["failures"], task["attempt"]) == (2, 2)
    assert "cancelled the worker's background tasks" in processes.log(worker)
    good = call.submit("fine", "--max-retries", "0")
    eventually(lambda: call.json("status", good)["status"] == "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


SLOW = """
import time
from pathlib import Path

try:
    Path("importing").touch()
    time.sleep(60)
finally:
    Path("left").touch()
"""


def test_a_worker_that_is_stopped_while_its_program_is_imported_exits_immediately(
    processes: Any, eventually: Any
) -> None:
    """The import is left in an orderly way, and not cut off when the time to end is over."""
    (processes.folder / "slow.py").write_text(SLOW)
    worker = processes.start("worker", "slow:app")
    eventually((processes.folder / "importing").exists)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert (processes.folder / "left").exists()


@pytest.mark.parametrize("options", [(), ("--drain",)], ids=["fleet", "drain"])
def test_a_fleet_that_the_store_rejects_gives_up(
    processes: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """Without credentials for a bucket: no replacement would have any."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    url = "s3://bucket/queue?endpoint=http://127.0.0.1:1"
    supervisor = processes.start("worker", "jobs", "--processes", "2", "--url", url, *options)
    assert supervisor.wait(PROCESS_TIMEOUT) == 5, processes.log(supervisor)
    log = processes.log(supervisor)
    assert "there are no credentials" in log
    assert "restarting" not in log and "cannot settle" not in log


def test_a_fleet_whose_store_is_away_starts_again(processes: Any, eventually: Any) -> None:
    url = "postgresql://nobody:secret@127.0.0.1:1/nothing?connect_timeout=1"
    supervisor = processes.start("worker", "jobs", "--processes", "2", "--id", "f", "--url", url)
    eventually(lambda: "worker f-1 exited with code 5; restarting it" in processes.log(supervisor))
    assert "cannot be reached" in processes.log(supervisor) and "cannot settle" not in processes.log(supervisor)
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(PROCESS_TIMEOUT)
