"""Handlers that misbehave must not hurt other tasks, whatever executes them."""

import asyncio
import multiprocessing.process
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from qo.background import LoopThread
from qo.executors.start_queue import StartQueue
from qo.model import FINISHED, Status, Task, expire
from qo.running_task import current_task
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT, forever, until
from tests.worker import handlers
from tests.worker.bench import Bench

POISON: list[tuple[Callable[..., Any], str]] = [
    (handlers.raises, "thread"),
    (handlers.raises, "process"),
    (handlers.exits, "thread"),
    (handlers.exits, "process"),
    (handlers.aexits, "async"),
    (handlers.aexits, "process"),
    (handlers.interrupted, "async"),
    (handlers.blocks, "thread"),
    (handlers.blocks, "process"),
    (handlers.ablocks, "async"),
    (handlers.spins, "thread"),
    (handlers.spins, "process"),
    (handlers.asleeps, "async"),
    (handlers.asleeps, "process"),
    (handlers.swallows, "async"),
    (handlers.swallows, "process"),
    (handlers.dies, "process"),
    (handlers.dies, "thread"),
    (handlers.adies, "async"),
    (handlers.eats, "thread"),
    (handlers.eats, "process"),
]


@pytest.fixture(autouse=True)
def unblock() -> Any:
    """Threads left behind end with their test."""
    handlers.never.clear()
    yield
    handlers.never.set()


@pytest.mark.parametrize(("poison", "executor"), POISON, ids=lambda value: getattr(value, "__name__", value))
async def test_healthy_tasks_complete_beside_a_poisonous_one(
    bench: Bench, poison: Callable[..., Any], executor: str
) -> None:
    is_async = executor == "async"
    bench.handle(poison, "poison", executor=executor, timeout=0.3)
    healthy = handlers.afine if is_async else handlers.fine
    bench.handle(healthy, "healthy", executor=executor)
    first = [await bench.submit("healthy", {"n": n}) for n in range(5)]
    bad = [await bench.submit("poison", max_retries=0, timeout=0.3) for _ in range(2)]
    more = [await bench.submit("healthy", {"n": n}) for n in range(5)]
    tasks = await bench.run_all([*first, *bad, *more], concurrency=4, prefetch=2)
    by_type = {kind: [task for task in tasks if task.type == kind] for kind in ("healthy", "poison")}
    assert [task.status for task in by_type["healthy"]] == [Status.COMPLETED] * 10
    assert [task.failures for task in by_type["healthy"]] == [0] * 10
    assert [task.status for task in by_type["poison"]] == [Status.FAILED] * 2
    assert all(task.error for task in by_type["poison"])


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("fork", "executor"), [(handlers.forks, "thread"), (handlers.forks, "process"), (handlers.aforks, "async")]
)
async def test_a_fork_that_comes_back_settles_nothing(bench: Bench, fork: Callable[..., Any], executor: str) -> None:
    bench.handle(fork, "fork", executor=executor)
    ids = [await bench.submit("fork") for _ in range(3)]
    tasks = await bench.run_all(ids)
    assert [(task.status, task.attempt) for task in tasks] == [(Status.COMPLETED, 1)] * 3


async def test_a_timeout_is_a_failure_that_is_retried(bench: Bench) -> None:
    bench.handle(handlers.asleeps, "slow", timeout=0.2)
    (task,) = await bench.run_all([await bench.submit("slow", timeout=0.2, max_retries=1)])
    assert (task.status, task.attempt, task.failures) == (Status.FAILED, 2, 2)
    assert task.error == "timed out after 0.2 s"


async def is_expired(bench: Bench, task: Task) -> bool:
    (landed,) = await bench.client.engine.apply([expire(task, random=0.0, grace=0.0)])
    return landed


async def test_a_task_that_crashed_its_process_runs_alone_next_time(bench: Bench) -> None:
    bench.handle(handlers.pid, "pid")
    task_id = await bench.submit("pid")
    (task,) = await bench.client.dequeue("pid", lease=0.001)
    await until(is_expired, bench, task)
    (task,) = await bench.run_all([task_id])
    assert task.status is Status.COMPLETED
    assert task.result is not None
    assert int(task.result) != os.getpid()


async def test_os_exit_is_put_back_when_the_last_worker_ends(bench: Bench) -> None:
    bench.handle(handlers.fine, "fine")
    before = os._exit
    async with bench.working(), bench.working():
        await bench.ended(await bench.submit("fine"))
        assert os._exit is not before
    assert os._exit is before


async def test_a_process_is_reused_and_replaced(bench: Bench) -> None:
    bench.handle(handlers.pid, "pid", executor="process")
    ids = [await bench.submit("pid") for _ in range(6)]
    tasks = await bench.run_all(ids, concurrency=1, tasks_per_process=3)
    pids = [task.result for task in tasks]
    assert len(set(pids)) == 2
    assert pids.count(pids[0]) == 3


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_what_no_thread_or_process_can_be_started_for_is_handed_back_at_no_cost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executor: str
) -> None:
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if self.name.startswith("qo-ThreadExecutor"):
            raise RuntimeError("can't start new thread")
        real(self)

    def spawn(*_: Any) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", spawn)
    bench.handle(handlers.fine, "fine", executor=executor)
    task_id = await bench.submit("fine", max_retries=0)
    async with bench.working(), asyncio.timeout(TIMEOUT):
        await until(lambda: f"cannot start a {executor}" in caplog.text)
        task = await bench.has_status(task_id, Status.PENDING)
    assert (task.attempt, task.failures) == (1, 0)
    assert task.available_at > task.updated_at  # not at once: the next attempt would fail in the same way


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_run_that_fails_before_its_handler_is_handed_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executor: str
) -> None:
    """For example because the worker runs in a daemonic process, which may have no children."""

    def fail(*_: Any) -> None:
        raise AssertionError("daemonic processes are not allowed to have children")

    if executor == "process":
        monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", fail)
    else:
        monkeypatch.setattr(StartQueue, "begin", fail)
    bench.handle(handlers.fine, "fine", executor=executor)
    task_id = await bench.submit("fine", max_retries=0)
    async with bench.working() as worker, asyncio.timeout(TIMEOUT):
        task = await bench.seen(task_id, is_handed_back)
        assert worker.status.held == 0
        assert worker.status.free_slots == 10
    assert (task.attempt, task.failures) == (1, 0)
    assert "are not allowed to have children" in caplog.text


def is_handed_back(task: Task) -> bool:
    return task.status is Status.PENDING and task.attempt > 0


async def test_a_handler_that_waits_in_its_thread_for_a_coroutine_ends_at_its_timeout(bench: Bench) -> None:
    """As one that waits for the result of another task."""
    thread = LoopThread("test")

    def waits() -> None:
        thread.run(forever())

    bench.handle(waits)
    (task,) = await bench.run_all([await bench.submit("waits", timeout=0.2, max_retries=0)])
    await asyncio.to_thread(thread.stop)
    assert (task.status, task.error) == (Status.FAILED, "timed out after 0.2 s")


async def test_a_task_beside_a_handler_that_blocks_their_loop_runs_again_although_the_timeout_is_noticed_late(
    bench: Bench,
) -> None:
    """The worker was frozen or starved, and pings the loop only after the timeout."""
    clock, has_begun, has_blocked = ManualClock(), threading.Event(), threading.Event()

    async def healthy() -> None:
        if current_task().attempt == 1:
            has_begun.set()
            await forever()

    async def poison() -> None:
        has_blocked.set()
        handlers.never.wait()

    bench.handle(healthy)
    bench.handle(poison)
    worker = Worker(bench.client, bench.registry, WorkerSettings(poll=0.05), clock=clock)
    running = asyncio.create_task(worker.run())
    beside = await bench.submit("healthy")
    await until(has_begun.is_set)
    blocking = await bench.submit("poison", max_retries=0, timeout=0.3)
    await until(has_blocked.is_set)
    clock.advance(2.9)

    async def have_ended() -> list[Task] | None:
        clock.advance(0.05)
        tasks = [await bench.stored(task_id) for task_id in (beside, blocking)]
        return tasks if all(task.status in FINISHED for task in tasks) else None

    ended = await until(have_ended)
    worker.stop()
    await running
    assert [(task.status, task.failures) for task in ended] == [(Status.COMPLETED, 0), (Status.FAILED, 1)]
    assert ended[1].error == "timed out after 0.3 s and blocked its event loop"
