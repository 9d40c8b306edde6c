"""A task that is cancelled while it runs: its handler is stopped soon, and the log and the callbacks say why."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qo.client import Client
from qo.engines import open_engine
from qo.executors import process_executor
from qo.hooks import TaskEvent
from qo.model import FailureKind, Status, Task, ended_because
from tests.conditions import TIMEOUT, until
from tests.worker.bench import Bench
from tests.worker.stoppable import RECORD, ignores, sleeps, swallows_cancellations, waits

NEVER = 600.0  # seconds; with this lease, no renewal comes within a test


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RECORD, str(tmp_path / "events"))
    (tmp_path / "events").touch()
    return tmp_path / "events"


def has(events: Path, *words: str) -> bool:
    return events.read_text().split() == list(words)


@pytest.mark.parametrize(
    ("handler", "executor", "raised"),
    [
        (sleeps, "async", "CancelledError"),
        (waits, "thread", "Cancelled"),
        (waits, "process", "Cancelled"),
        (sleeps, "process", "CancelledError"),
    ],
)
async def test_the_handler_is_told_in_each_executor_and_hooks_and_log_say_cancelled(
    bench: Bench,
    events: Path,
    *,
    handler: Callable[..., Any],
    executor: str,
    raised: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # On a busy machine a child may need longer than the grace to record what its handler raised.
    monkeypatch.setattr(process_executor, "CANCEL_GRACE", TIMEOUT)
    seen: list[TaskEvent] = []
    for name in ("task_cancelled", "task_failed", "task_retrying", "task_succeeded"):
        bench.registry.hooks.add_callback(name, seen.append)
    bench.handle(handler, "work", executor=executor)
    with caplog.at_level(logging.INFO, "qo"):
        async with bench.working(lease=NEVER) as worker:
            task_id = await bench.submit("work")
            await until(has, events, "started")
            await bench.client.cancel(task_id)
            await until(has, events, "started", raised)
            await until(lambda: not worker.status.running and seen)
    task = await bench.stored(task_id)
    assert (task.status, ended_because(task), task.failures) == (Status.CANCELLED, FailureKind.CANCELLED, 0)
    (event,) = seen
    assert (event.name, event.task.id, event.kind) == ("task_cancelled", task_id, FailureKind.CANCELLED)
    (line,) = [record.getMessage() for record in caplog.records if "stopping its handler" in record.getMessage()]
    assert line.startswith(f"work {task_id} cancelled after ")
    assert "timed out" not in caplog.text and "lease lost" not in caplog.text


@pytest.mark.parametrize(
    ("handler", "executor", "raised"),
    [(sleeps, "async", "CancelledError"), (waits, "thread", "Cancelled"), (waits, "process", "Cancelled")],
)
async def test_middleware_that_swallows_a_cancellation_stores_no_result(
    bench: Bench,
    events: Path,
    *,
    handler: Callable[..., Any],
    executor: str,
    raised: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_executor, "CANCEL_GRACE", TIMEOUT)
    seen: list[str] = []
    for name in ("task_cancelled", "task_failed", "task_retrying", "task_succeeded"):
        bench.registry.hooks.add_callback(name, lambda event: seen.append(event.name))
    bench.registry.hooks.add_middleware(swallows_cancellations)
    bench.handle(handler, "work", executor=executor)
    async with bench.working(lease=NEVER) as worker:
        task_id = await bench.submit("work")
        await until(has, events, "started")
        await bench.client.cancel(task_id)
        await until(has, events, "started", raised, "swallowed")
        await until(lambda: not worker.status.running and seen)
    task = await bench.stored(task_id)
    assert (task.status, task.result, seen) == (Status.CANCELLED, None, ["task_cancelled"])


async def test_a_child_process_that_ignores_it_is_killed(
    bench: Bench, events: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_executor, "CANCEL_GRACE", 0.1)
    bench.handle(ignores, "work", executor="process")
    async with bench.working(lease=NEVER) as worker:
        task_id = await bench.submit("work")
        await until(has, events, "started")
        await bench.client.cancel(task_id)
        await until(lambda: not worker.status.running)
    assert (await bench.stored(task_id)).status is Status.CANCELLED


async def test_a_task_with_a_large_payload_is_stopped_too(bench: Bench, events: Path) -> None:
    def work(text: str) -> None:
        assert text
        waits()

    bench.handle(work)
    async with bench.working(lease=NEVER):
        task_id = await bench.submit("work", {"text": "x" * 20_000})
        await until(has, events, "started")
        await bench.client.cancel(task_id)
        await until(has, events, "started", "Cancelled")


async def test_a_task_that_is_cancelled_just_before_it_ends_counts_as_cancelled(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    go, started = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    seen: list[TaskEvent] = []

    async def work() -> None:
        loop.call_soon_threadsafe(started.set)
        while not go.is_set():
            await asyncio.sleep(0)

    bench.registry.hooks.add_callback("task_cancelled", seen.append)
    bench.handle(work)
    with caplog.at_level(logging.INFO, "qo"):
        async with bench.working(lease=NEVER):
            task_id = await bench.submit("work")
            await started.wait()
            await bench.client.cancel(task_id)
            go.set()
            await until(lambda: bool(seen))
    assert "its result is dropped" in caplog.text or "stopping its handler" in caplog.text


async def test_another_process_cancels_and_no_renewal_is_needed(store: str, events: Path) -> None:
    async with Client(open_engine(store)) as here, Client(open_engine(store)) as there:
        bench = Bench(there)
        bench.handle(sleeps, "work")
        async with bench.working(lease=NEVER):
            handle = await here.enqueue("work", {})
            await until(has, events, "started")
            await here.cancel(handle.id)
            await until(has, events, "started", "CancelledError")
            task: Task | None = await here.get(handle.id)
    assert task is not None
    assert task.status is Status.CANCELLED
