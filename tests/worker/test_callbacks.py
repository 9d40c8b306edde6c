"""Callbacks of events: they learn what happened and cannot change it."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qo.errors import Fail, InvalidSetting
from qo.hooks import EVENT_NAMES, TaskEvent, WorkerEvent, current_worker
from qo.model import FailureKind, RetryPolicy, Status
from qo.running_task import current_task
from qo.worker import callbacks
from tests.conditions import until
from tests.worker.bench import Bench
from tests.worker.handlers import fine

QUICK = RetryPolicy(initial=0.01, max=0.02)


def record(bench: Bench) -> list[TaskEvent | WorkerEvent]:
    events: list[TaskEvent | WorkerEvent] = []
    for name in EVENT_NAMES:
        bench.registry.hooks.add_callback(name, events.append)
    return events


async def test_each_transition_is_one_event_in_its_order(bench: Bench) -> None:
    def flaky() -> str:
        if current_task().attempt == 1:
            raise ValueError("not yet")
        return "done"

    def hopeless() -> None:
        raise Fail("no such customer")

    events = record(bench)
    bench.handle(flaky)
    bench.handle(hopeless)
    first, second = await bench.submit("flaky", retry=QUICK), await bench.submit("hopeless")
    await bench.run_all([first, second])

    def of(task_id: str) -> list[str]:
        return [event.name for event in events if isinstance(event, TaskEvent) and event.task.id == task_id]

    assert [events[0].name, events[-1].name] == ["worker_started", "worker_stopping"]
    assert of(first) == ["task_started", "task_retrying", "task_started", "task_succeeded"]
    assert of(second) == ["task_started", "task_failed"]
    (retrying,) = [event for event in events if event.name == "task_retrying"]
    assert isinstance(retrying, TaskEvent)
    assert (retrying.error or "").startswith("ValueError: not yet\nTraceback")
    assert (retrying.kind, retrying.task.attempt) == (FailureKind.ERROR, 1)
    assert 0 < (retrying.delay or 0) < 0.1
    assert (retrying.duration or 0) > 0


async def test_a_callback_knows_its_task_and_its_worker(bench: Bench) -> None:
    known: list[tuple[str, str]] = []

    def on_success(_: TaskEvent) -> None:
        known.append((current_task().id, current_worker().id))

    bench.registry.hooks.add_callback("task_succeeded", on_success)
    bench.handle(fine)
    task_id = await bench.submit("fine")
    await bench.run_all([task_id], id="w1")
    assert known == [(task_id, "w1")]


def exits(_: Any) -> None:
    sys.exit(3)


def exits_at_once(_: Any) -> None:
    os._exit(4)


def raises(_: Any) -> None:
    raise ValueError("a bad callback")


def forks(_: Any) -> None:
    os.fork()


@pytest.mark.parametrize("bad", [exits, exits_at_once, raises, forks])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_callback_that_raises_exits_or_forks_changes_nothing(
    bench: Bench, bad: Callable[[Any], None], caplog: pytest.LogCaptureFixture
) -> None:
    for name in EVENT_NAMES:
        bench.registry.hooks.add_callback(name, bad)
    events = record(bench)
    bench.handle(fine)
    with caplog.at_level(logging.ERROR, "qo.worker"):
        (task,) = await bench.run_all([await bench.submit("fine", {"n": 7})])
    assert (task.status, task.result, task.attempt) == (Status.COMPLETED, b"7", 1)
    assert [event.name for event in events] == ["worker_started", "task_started", "task_succeeded", "worker_stopping"]
    assert bad is forks or f"the callback {bad.__name__} of task_succeeded raised" in caplog.text


async def test_a_callback_that_hangs_is_abandoned_and_after_a_few_times_not_called_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "CALLBACK_TIMEOUT", 0.05)
    go = threading.Event()
    calls: list[TaskEvent] = []
    others: list[TaskEvent] = []

    def hangs(event: TaskEvent) -> None:
        calls.append(event)
        go.wait()

    bench.registry.hooks.add_callback("task_succeeded", hangs)
    bench.registry.hooks.add_callback("task_started", others.append)
    bench.handle(fine)
    async with bench.working():
        ids = [await bench.submit("fine") for _ in range(5)]
        await until(lambda: len(calls) == callbacks.MAX_HANGS and len(others) == len(ids))
        await until(lambda: "it is not called again" in caplog.text)
        for task_id in ids:
            assert (await bench.stored(task_id)).status is Status.COMPLETED
    go.set()
    assert len(calls) == callbacks.MAX_HANGS


async def test_events_beyond_the_limit_are_dropped_and_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(callbacks, "MAX_WAITING", 2)
    go, calls = threading.Event(), []

    def slow(event: TaskEvent) -> None:
        go.wait()
        calls.append(event)

    bench.registry.hooks.add_callback("task_started", slow)
    bench.handle(fine)
    async with bench.working():
        ids = [await bench.submit("fine") for _ in range(10)]
        for task_id in ids:
            await bench.ended(task_id)
        await until(lambda: "too slow: dropped" in caplog.text)
        go.set()
        await until(lambda: len(calls) >= 2)
    assert len(calls) <= 4


def test_a_callback_is_checked_when_it_is_declared(bench: Bench) -> None:
    hooks = bench.registry.hooks

    async def later(event: TaskEvent) -> None: ...

    with pytest.raises(InvalidSetting, match="there is no event 'task_done'; the events are: task_started, "):
        hooks.add_callback("task_done", raises)
    with pytest.raises(InvalidSetting, match="later is async: a callback of task_failed is a plain function"):
        hooks.add_callback("task_failed", later)
    with pytest.raises(InvalidSetting, match=r"must accept these arguments: \(event\)"):
        hooks.add_callback("task_failed", lambda: None)  # type: ignore[arg-type, misc]
