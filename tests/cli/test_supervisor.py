"""A worker process that a handler holds hostage is replaced."""

import signal
from typing import Any

import pytest

HOSTILE = """
import asyncio, re, sys, threading, time
from pathlib import Path
import qo

app = qo.App()

@app.task(timeout=1, retries=1, retry=qo.RetryPolicy(initial=0.05, jitter=0.0))
def regex() -> None:
    re.match(r"(a+)+$", "a" * 40 + "b")

@app.task(retries=1, retry=qo.RetryPolicy(initial=0.05, jitter=0.0))
def cancel_worker() -> None:
    async def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()
    app.run(cancel_all())

@app.task(retries=0)
def fine() -> str:
    return "fine"

@app.task(retries=0)
def starve() -> None:
    def refuse(self) -> None:
        raise RuntimeError("can't start new thread")
    kept, threading.Thread.start = threading.Thread.start, refuse
    time.sleep(2)
    threading.Thread.start = kept
"""
QUICK = ("--poll", "0.2", "--check-interval", "1", "--concurrency", "2")


@pytest.fixture
def hostile(processes: Any) -> str:
    (processes.folder / "hostile.py").write_text(HOSTILE)
    return "hostile:app"


def test_a_handler_that_holds_the_interpreter_is_ended_and_charged(
    call: Any, processes: Any, hostile: str, eventually: Any
) -> None:
    bad = call.submit("regex", "--max-retries", "1", "--timeout", "1")
    worker = processes.start("worker", hostile, *QUICK)
    eventually(lambda: call.json("status", bad)["status"] == "failed", patience=60.0)
    task = call.json("status", bad)
    assert (task["failures"], task["attempt"]) == (2, 2)  # the second time in a process of its own
    assert "did not answer" in processes.log(worker)
    good = call.submit("fine", "--max-retries", "0")
    eventually(lambda: call.json("status", good)["status"] == "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_a_handler_that_cancels_the_work_of_its_worker_is_charged(
    call: Any, processes: Any, hostile: str, eventually: Any
) -> None:
    bad = call.submit("cancel_worker", "--max-retries", "1")
    worker = processes.start("worker", hostile, *QUICK)
    eventually(lambda: call.json("status", bad)["status"] in ("failed", "completed"), patience=60.0)
    assert "cancelled the worker's own work" in processes.log(worker)
    assert call.json("status", bad)["attempt"] == 2
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0


def test_what_no_thread_can_be_started_for_is_handed_back(
    call: Any, processes: Any, hostile: str, eventually: Any
) -> None:
    starve = call.submit("starve")
    worker = processes.start("worker", hostile, *QUICK)
    eventually(lambda: call.json("status", starve)["status"] == "running")
    good = call.submit("fine", "--max-retries", "0")
    eventually(lambda: "no thread can be started" in processes.log(worker))
    eventually(lambda: call.json("status", good)["status"] == "completed", patience=60.0)
    assert call.json("status", good)["failures"] == 0
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
