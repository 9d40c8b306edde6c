"""A worker process that a handler holds hostage is replaced."""

import signal
from typing import Any

import pytest

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
