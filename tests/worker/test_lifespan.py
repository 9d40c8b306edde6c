"""The lifespan: entered before the first task, left after the last, once per process and event loop."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from qo.clock import boot_clock
from qo.errors import InvalidSetting
from qo.executors import lifespan, loop_executor
from qo.executors.lifespan import LifespanFailed
from qo.hooks import current_worker
from qo.model import Status
from qo.worker import Worker
from tests.conditions import until
from tests.worker import hooked
from tests.worker.bench import Bench


@pytest.mark.parametrize(
    ("function", "executor"),
    [(hooked.afetch, "async"), (hooked.fetch, "thread"), (hooked.fetch, "process"), (hooked.afetch, "process")],
)
async def test_an_async_pool_is_opened_and_closed_by_the_worker_in_each_executor(
    bench: Bench, function: Callable[..., Any], executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_TEST_RECORD", str(tmp_path / "record"))
    bench.registry.hooks.set_lifespan(hooked.pool)
    bench.handle(function, "work", executor=executor)
    tasks = await bench.run_all([await bench.submit("work", max_retries=0) for _ in range(3)], concurrency=1)
    assert {task.status for task in tasks} == {Status.COMPLETED}, tasks[0].error
    pids = {int(task.result or 0) for task in tasks}
    assert (pids == {os.getpid()}) == (executor != "process")
    closed = (tmp_path / "record").read_text().splitlines()
    assert sorted(closed) == sorted(f"closed {pid}" for pid in pids | {os.getpid()})


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
async def test_middleware_uses_the_state_of_the_lifespan_in_each_executor(bench: Bench, executor: str) -> None:
    bench.registry.hooks.set_lifespan(hooked.pool)
    bench.registry.hooks.add_middleware(hooked.fetches)
    bench.handle(hooked.afetch if executor == "async" else hooked.fetch, "work", executor=executor)
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0)])
    assert task.status is Status.COMPLETED, task.error


async def test_it_is_entered_before_the_first_task_and_left_after_the_last(bench: Bench) -> None:
    order: list[str] = []

    @asynccontextmanager
    async def life() -> AsyncIterator[str]:
        order.append("entered")
        await asyncio.sleep(0)
        yield "state"
        order.append("left")

    async def work() -> None:
        order.append(current_worker().state)

    bench.registry.hooks.set_lifespan(life)
    bench.handle(work)
    await bench.run_all([await bench.submit("work") for _ in range(2)])
    assert order == ["entered", "state", "state", "left"]


async def raises() -> AsyncIterator[None]:
    raise ConnectionError("no database")
    yield


async def exits() -> AsyncIterator[None]:
    sys.exit(3)
    yield


async def exits_at_once() -> AsyncIterator[None]:
    os._exit(4)
    yield


async def hangs() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


async def blocks() -> AsyncIterator[None]:
    hooked.never.wait()
    yield


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (raises, "the lifespan raised ConnectionError: no database"),
        (exits, "the lifespan raised SystemExit: 3"),
        (exits_at_once, "the lifespan raised Exited: 4"),
        (hangs, "the lifespan did not yield within 0.2 s"),
        (blocks, "the lifespan did not yield within 0.2 s"),
    ],
)
async def test_a_lifespan_that_cannot_be_entered_ends_the_worker_before_it_claims(
    bench: Bench, function: Any, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "ENTER_TIMEOUT", 0.2)
    monkeypatch.setattr(loop_executor, "LOOP_CLOSE_TIMEOUT", 0.1)
    monkeypatch.setattr(lifespan, "LEAVE_TIMEOUT", 0.1)
    bench.registry.hooks.set_lifespan(function)
    bench.handle(hooked.atagged, "work")
    task_id = await bench.submit("work")
    with pytest.raises(LifespanFailed) as failed:
        await Worker(bench.client, bench.registry).run()
    assert str(failed.value) == error
    assert (await bench.stored(task_id)).attempt == 0


async def test_a_lifespan_that_fails_or_hangs_at_its_end_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespan, "LEAVE_TIMEOUT", 0.1)

    async def fails_late() -> AsyncIterator[None]:
        yield
        raise ConnectionError("already closed")

    bench.registry.hooks.set_lifespan(fails_late)
    bench.handle(hooked.atagged, "work")
    (task,) = await bench.run_all([await bench.submit("work")])
    assert task.status is Status.COMPLETED
    assert "the lifespan failed while it ended" in caplog.text


async def test_a_handler_that_blocks_the_event_loop_gives_the_others_a_new_lifespan(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 0.2)
    go, entered = threading.Event(), []

    async def life() -> AsyncIterator[hooked.Pool]:
        entered.append(1)
        yield hooked.Pool()

    async def block() -> None:
        go.wait()

    bench.registry.hooks.set_lifespan(life)
    bench.handle(block)
    bench.handle(hooked.afetch, "work")
    async with bench.working():
        blocking = await bench.submit("block")
        await until(lambda: len(entered) == 2)
        assert (await bench.ended(await bench.submit("work"))).status is Status.COMPLETED
        go.set()
        assert (await bench.ended(blocking)).status is Status.COMPLETED


async def test_the_lifespan_of_an_event_loop_that_was_blocked_ends_when_its_last_handler_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 0.2)
    go, entered, left = threading.Event(), list[int](), list[int]()

    async def life() -> AsyncIterator[hooked.Pool]:
        entered.append(number := len(entered))
        yield hooked.Pool()
        left.append(number)

    async def block() -> None:
        go.wait()

    bench.registry.hooks.set_lifespan(life)
    bench.handle(block)
    bench.handle(hooked.afetch, "work")
    async with bench.working():
        blocking = await bench.submit("block")
        await until(lambda: len(entered) == 2)
        assert left == []
        go.set()
        assert (await bench.ended(blocking)).status is Status.COMPLETED
        await until(lambda: left == [0])
        assert (await bench.ended(await bench.submit("work"))).status is Status.COMPLETED
    assert left == [0, 1]


async def test_a_new_lifespan_that_blocks_its_event_loop_for_long_is_entered_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 0.2)
    go, ready, entered = threading.Event(), threading.Event(), list[int]()

    async def life() -> AsyncIterator[hooked.Pool]:
        entered.append(1)
        if len(entered) > 1:
            ready.wait()
        yield hooked.Pool()

    async def block() -> None:
        go.wait()

    checked_at: list[float] = []
    is_stalled = loop_executor.LoopExecutor.is_stalled

    def recorded(executor: loop_executor.LoopExecutor) -> bool:
        if len(entered) > 1:
            checked_at.append(boot_clock())
        return is_stalled(executor)

    monkeypatch.setattr(loop_executor.LoopExecutor, "is_stalled", recorded)
    bench.registry.hooks.set_lifespan(life)
    bench.handle(block)
    bench.handle(hooked.afetch, "work")
    async with bench.working():
        blocking = await bench.submit("block")
        await until(lambda: len(entered) == 2)
        waiting = await bench.submit("work")
        await until(lambda: len(checked_at) > 2 and checked_at[-1] - checked_at[0] > 3 * loop_executor.STALL_TIMEOUT)
        ready.set()
        assert (await bench.ended(waiting)).status is Status.COMPLETED
        assert len(entered) == 2
        go.set()
        assert (await bench.ended(blocking)).status is Status.COMPLETED


async def test_a_new_lifespan_that_hangs_hands_its_tasks_back_and_is_entered_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 0.2)
    go, entered = threading.Event(), list[int]()

    async def life() -> AsyncIterator[hooked.Pool]:
        entered.append(1)
        if len(entered) == 2:
            await asyncio.Event().wait()
        yield hooked.Pool()

    async def block() -> None:
        go.wait()

    bench.registry.hooks.set_lifespan(life)
    bench.handle(block)
    bench.handle(hooked.afetch, "work")
    async with bench.working():
        monkeypatch.setattr(lifespan, "ENTER_TIMEOUT", 0.5)
        blocking = await bench.submit("block")
        await until(lambda: len(entered) == 2)
        assert (await bench.ended(await bench.submit("work"))).status is Status.COMPLETED
        assert len(entered) == 3
        assert "the lifespan did not yield within 0.5 s; handing 1 task back" in caplog.text
        go.set()
        assert (await bench.ended(blocking)).status is Status.COMPLETED


async def test_run_explains_where_it_cannot_be_used(bench: Bench) -> None:
    async def work() -> None:
        current_worker().run(asyncio.sleep(0))

    bench.registry.hooks.set_lifespan(hooked.pool)
    bench.handle(work)
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0)])
    assert "await it instead" in (task.error or "")
    with pytest.raises(InvalidSetting, match="only in code that a worker runs"):
        current_worker()


async def test_an_app_has_one_lifespan_and_declares_it_before_its_worker_starts(bench: Bench) -> None:
    hooks = bench.registry.hooks
    bench.handle(hooked.atagged, "work")
    await bench.run_all([await bench.submit("work")])
    with pytest.raises(InvalidSetting, match="before the worker starts"):
        hooks.set_lifespan(hooked.pool)
    hooks.is_in_use = False
    hooks.set_lifespan(hooked.pool)
    with pytest.raises(InvalidSetting, match="the lifespan is already pool"):
        hooks.set_lifespan(raises)
