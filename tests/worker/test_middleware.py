"""Middleware around every attempt, in each executor; it is part of the attempt."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from qo.errors import InvalidSetting
from qo.hooks import CallNext
from qo.model import FailureKind, Status, Task
from qo.running_task import current_task
from tests.worker import hooked
from tests.worker.bench import Bench

HANDLERS = {"async": hooked.atagged, "thread": hooked.tagged, "process": hooked.tagged}
executors = pytest.mark.parametrize("executor", HANDLERS)


def declare(bench: Bench, executor: str, **options: Any) -> None:
    bench.handle(HANDLERS[executor], "work", executor=executor, **options)


@executors
async def test_middleware_surrounds_the_handler_and_shares_its_context_variables(bench: Bench, executor: str) -> None:
    bench.registry.hooks.add_middleware(hooked.tags)
    declare(bench, executor)
    (task,) = await bench.run_all([await bench.submit("work")])
    assert task.status is Status.COMPLETED, task.error
    assert json.loads(task.result or b"") == {"result": "work 1"}


async def test_an_async_handler_in_a_child_process_has_the_same_middleware(bench: Bench) -> None:
    bench.registry.hooks.add_middleware(hooked.tags)
    bench.handle(hooked.atagged, "work", executor="process")
    (task,) = await bench.run_all([await bench.submit("work")])
    assert json.loads(task.result or b"") == {"result": "work 1"}


async def test_the_first_declared_middleware_is_the_outermost(bench: Bench) -> None:
    order = []

    async def outer(_task: Task, call_next: CallNext) -> Any:
        order.append("outer")
        return await call_next()

    async def inner(_task: Task, call_next: CallNext) -> Any:
        order.append("inner")
        return await call_next()

    for function in (outer, inner):
        bench.registry.hooks.add_middleware(function)
    declare(bench, "async")
    await bench.run_all([await bench.submit("work")])
    assert order == ["outer", "inner"]


@pytest.mark.parametrize("executor", ["async", "thread"])
async def test_what_one_attempt_sets_the_next_does_not_see(bench: Bench, executor: str) -> None:
    async def once(task: Task, call_next: CallNext) -> Any:
        if task.type == "first":
            hooked.seen.set("leaked")
        return await call_next()

    bench.registry.hooks.add_middleware(once)
    for name in ("first", "second"):
        bench.handle(HANDLERS[executor], name, executor=executor)
    ids = [await bench.submit(name) for name in ("first", "second")]
    tasks = await bench.run_all(ids, concurrency=1)
    assert [task.result for task in tasks] == [b'"leaked"', b'"nothing"']


@executors
@pytest.mark.parametrize(
    ("middleware", "error"),
    [(hooked.raises, "ValueError: no work"), (hooked.exits, "sys.exit(3)"), (hooked.exits_at_once, "exit")],
)
async def test_middleware_that_raises_or_exits_fails_its_attempt_only(
    bench: Bench, executor: str, middleware: Any, error: str
) -> None:
    bench.registry.hooks.add_middleware(middleware)
    declare(bench, executor)
    tasks = await bench.run_all([await bench.submit("work", max_retries=0) for _ in range(2)], concurrency=1)
    for task in tasks:
        assert task.status is Status.FAILED
        assert error in (task.error or "")


@executors
async def test_middleware_that_hangs_reaches_the_time_limit_of_its_attempt(bench: Bench, executor: str) -> None:
    bench.registry.hooks.add_middleware(hooked.hangs)
    declare(bench, executor)
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0, timeout=0.2)])
    assert (task.status, task.failure_kind) == (Status.FAILED, FailureKind.TIMEOUT)
    assert "ignored" not in (task.error or "")


@executors
async def test_middleware_that_swallows_the_timeout_of_a_handler_does_not_complete_the_task(
    bench: Bench, executor: str
) -> None:
    bench.registry.hooks.add_middleware(hooked.swallows)
    handlers = {"async": hooked.ahangs, "thread": hooked.hangs_in_a_loop, "process": hooked.ahangs}
    bench.handle(handlers[executor], "work", executor=executor)
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0, timeout=0.2)])
    assert (task.status, task.failure_kind) == (Status.FAILED, FailureKind.TIMEOUT), task.result
    assert "ignored" not in (task.error or "")


async def test_a_handler_that_returns_after_its_timeout_completes_the_task(bench: Bench) -> None:
    bench.registry.hooks.add_middleware(hooked.continues)
    bench.handle(hooked.returns_what_it_has, "work", executor="async")
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0, timeout=0.2)])
    assert (task.status, task.result) == (Status.COMPLETED, b'"half"')


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_plain_handler_may_call_asyncio_run_inside_middleware(bench: Bench, executor: str) -> None:
    for middleware in (hooked.tags, hooked.continues):
        bench.registry.hooks.add_middleware(middleware)
    bench.handle(hooked.runs_a_loop, "work", executor=executor)
    tasks = await bench.run_all([await bench.submit("work", max_retries=0) for _ in range(2)], concurrency=1)
    for task in tasks:
        assert task.status is Status.COMPLETED, task.error
        assert json.loads(task.result or b"") == {"result": "work 1"}


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_plain_handler_that_hangs_in_asyncio_run_reaches_its_time_limit(bench: Bench, executor: str) -> None:
    bench.registry.hooks.add_middleware(hooked.continues)
    bench.handle(hooked.hangs_in_a_loop, "work", executor=executor)
    bench.handle(hooked.runs_a_loop, "next", executor=executor)
    first = await bench.submit("next", max_retries=0)  # starts the child process
    ids = [await bench.submit("work", max_retries=0, timeout=0.2), await bench.submit("next", max_retries=0)]
    _, hung, following = await bench.run_all([first, *ids], concurrency=1)
    assert (hung.status, hung.failure_kind) == (Status.FAILED, FailureKind.TIMEOUT)
    assert "ignored" not in (hung.error or "")
    assert following.status is Status.COMPLETED, following.error


async def test_a_plain_handler_whose_event_loop_swallows_the_timeout_gets_it_again(bench: Bench) -> None:
    bench.handle(hooked.swallows_one_exception, "work", executor="thread")
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0, timeout=0.2)])
    assert (task.status, task.error) == (Status.FAILED, "timed out after 0.2 s")


async def test_a_plain_handler_that_cleans_up_after_its_timeout_is_not_interrupted_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QO_TEST_RECORD", str(tmp_path / "record"))
    bench.handle(hooked.cleans_up, "work", executor="thread")
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0, timeout=0.2)])
    assert (task.status, task.error) == (Status.FAILED, "timed out after 0.2 s")
    assert "cleaned up" in (tmp_path / "record").read_text()


async def test_middleware_sees_the_error_of_a_plain_handler_and_may_replace_it(bench: Bench) -> None:
    async def forgives(_task: Task, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except ValueError as error:
            return f"forgiven: {error} in {threading.current_thread().name}"

    bench.registry.hooks.add_middleware(forgives)
    bench.handle(hooked.bad)
    (task,) = await bench.run_all([await bench.submit("bad")])
    assert task.result == b'"forgiven: bad in qo-ThreadExecutor"'


async def test_invalid_arguments_pass_through_the_middleware(bench: Bench) -> None:
    seen = []

    async def watches(_task: Task, call_next: CallNext) -> Any:
        try:
            return await call_next()
        except Exception as error:
            seen.append(str(error))
            raise

    def work(n: int) -> None: ...

    bench.registry.hooks.add_middleware(watches)
    bench.handle(work)
    (task,) = await bench.run_all([await bench.submit("work", {"m": 1})])
    assert (task.status, task.attempt) == (Status.FAILED, 1)
    assert [task.error] == seen


async def test_calling_the_handler_twice_is_an_error(bench: Bench) -> None:
    calls = []

    async def twice(_task: Task, call_next: CallNext) -> Any:
        await call_next()
        return await call_next()

    async def work() -> None:
        calls.append(current_task().attempt)

    bench.registry.hooks.add_middleware(twice)
    bench.handle(work)
    (task,) = await bench.run_all([await bench.submit("work", max_retries=0)])
    assert "twice() called call_next() twice" in (task.error or "").replace("<locals>.twice", "twice()")
    assert calls == [1]


async def test_what_middleware_of_a_plain_handler_leaves_running_is_cancelled(bench: Bench) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leaves(_task: Task, call_next: CallNext) -> Any:
        left.append(asyncio.ensure_future(asyncio.Event().wait()))
        return await call_next()

    bench.registry.hooks.add_middleware(leaves)
    bench.handle(hooked.tagged, "work")
    tasks = await bench.run_all([await bench.submit("work") for _ in range(2)])
    assert {task.status for task in tasks} == {Status.COMPLETED}
    assert all(each.cancelled() for each in left)


async def test_middleware_is_checked_when_it_is_declared(bench: Bench) -> None:
    hooks = bench.registry.hooks

    async def nothing() -> None: ...

    with pytest.raises(InvalidSetting, match="tagged is not async"):
        hooks.add_middleware(hooked.tagged)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"must accept these arguments: \(task, call_next\)"):
        hooks.add_middleware(nothing)  # type: ignore[arg-type]


async def test_a_worker_with_child_processes_refuses_middleware_that_they_cannot_import(bench: Bench) -> None:
    async def local(_task: Task, _call_next: CallNext) -> Any: ...

    bench.registry.hooks.add_middleware(local)
    declare(bench, "process")
    with pytest.raises(InvalidSetting, match="local is also called in child processes"):
        async with bench.working():
            pass
