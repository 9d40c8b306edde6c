"""Sentry gets one event for each failed attempt, from each executor. Its transport is replaced, the rest is real."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

import qo.sentry
from qo import App, RetryPolicy
from qo.app import Enqueuer
from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.errors import Retry
from qo.model import Status
from qo.running_task import current_task
from tests.worker.bench import Bench

QUICK = RetryPolicy(initial=0.01, max=0.02)
RECORD = "QO_TEST_SENTRY"


class FileTransport(Transport):
    """Writes events to a file, because a child process has its own Sentry."""

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            with Path(os.environ[RECORD]).open("ab") as file:
                file.write(msgspec.json.encode(event, enc_hook=str) + b"\n")


if RECORD in os.environ:  # in a child process, which imports this module
    sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=FileTransport, default_integrations=False)

app = App("memory://")
qo.sentry.install(app)


@app.task(max_retries=1, retry=QUICK)
async def fails() -> None:
    raise ValueError("async")


@app.task(max_retries=1, retry=QUICK)
def fails_in_a_thread() -> None:
    raise ValueError("thread")


@app.task(max_retries=1, retry=QUICK, executor="process")
def fails_in_a_process() -> None:
    raise ValueError("process")


@app.task(max_retries=0, timeout=0.2)
async def sleeps() -> None:
    await asyncio.Event().wait()


@app.task(max_retries=0, executor="process")
def dies() -> None:
    os.kill(os.getpid(), 9)


@app.task(retry=QUICK)
async def asks() -> None:
    if current_task().attempt == 1:
        raise Retry("later", after=0.01)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(RECORD, str(tmp_path / "events"))
    (tmp_path / "events").touch()
    sentry_sdk.init(dsn="http://key@127.0.0.1/1", transport=FileTransport, default_integrations=False)
    yield tmp_path / "events"
    sentry_sdk.init(default_integrations=False)


def read(record: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]


async def test_one_event_per_failed_attempt_with_task_id_type_and_attempt(record: Path) -> None:
    async with Client(MemoryEngine()) as client:
        bench = Bench(client)
        bench.registry = app.registry
        functions: tuple[Enqueuer[[], None], ...] = (
            fails,
            fails_in_a_thread,
            fails_in_a_process,
            sleeps,
            dies,
            asks,
        )
        async with bench.working():
            handles = await client.submit_many([function.describe() for function in functions])
            ended = [await client.ended(handle.id, timeout=120) for handle in handles]
    tasks = {task.type: task for task in ended}
    events = read(record)
    assert Counter((event["tags"]["qo.type"], event["tags"]["qo.attempt"]) for event in events) == {
        ("fails", 1): 1,
        ("fails", 2): 1,
        ("fails_in_a_thread", 1): 1,
        ("fails_in_a_thread", 2): 1,
        ("fails_in_a_process", 1): 1,
        ("fails_in_a_process", 2): 1,
        ("sleeps", 1): 1,
        ("dies", 1): 1,
    }
    assert all(event["tags"]["qo.task_id"] == tasks[event["tags"]["qo.type"]].id for event in events)
    raised = [event for event in events if "exception" in event]
    assert {event["exception"]["values"][0]["value"] for event in raised} == {"async", "thread", "process"}
    assert {event["message"] for event in events if "message" in event} == {
        "timed out after 0.2 s",
        "lost: the process running the handler was killed by signal 9",
    }
    assert tasks["asks"].status is Status.COMPLETED


async def test_a_child_process_without_sentry_says_so_once(capfd: pytest.CaptureFixture[str]) -> None:
    async with Client(MemoryEngine()) as client:
        bench = Bench(client)
        bench.registry = app.registry
        async with bench.working():
            handle = await client.submit(fails_in_a_process.describe())
            await client.ended(handle.id, timeout=120)
    assert capfd.readouterr().err.count("call sentry_sdk.init in the module of the handler") == 1  # of two attempts
