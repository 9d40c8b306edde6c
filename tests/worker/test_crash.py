"""What becomes of the tasks of a worker process that died."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.executors import loop_executor
from qo.executors.run import Run
from qo.executors.run_table import Phase, RunEntry, RunTable
from qo.model import Status, Task, lost_its_process
from qo.supervisor.crash import CrashReport, CrashSettlement, settle, suspects_of
from qo.supervisor.worker_process import WorkerProcess, state_of
from qo.tasks import Executor, make_handler, make_options
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings, lease_keeper
from tests.conditions import until
from tests.worker.bench import Bench


def entry(task_id: str, executor: Executor, thread: int = 1) -> RunEntry:
    return RunEntry(
        task_id=task_id,
        lease_id="l",
        executor=executor,
        reachable=True,
        thread=thread,
        started_at=0.0,
        ends_at=1.0,
        time_limit=1.0,
    )


def test_only_runs_inside_the_process_are_suspects_if_there_are_any() -> None:
    loop, thread, child = entry("a", Executor.ASYNC), entry("b", Executor.THREAD, 2), entry("c", Executor.PROCESS)
    assert suspects_of([loop, thread, child], None) == [loop, thread]
    assert suspects_of([loop, thread, child], 2) == [thread]
    assert suspects_of([child], 2) == [child]


async def crashed(client: Client, number: int, **given: Any) -> tuple[list[str], CrashSettlement]:
    """Several running tasks, and what the store was told when their worker died."""
    ids = [(await client.enqueue("t", {"n": n}, max_retries=2)).id for n in range(number)]
    tasks = await client.dequeue("t", batch_size=number)
    worker_id, leases = str(tasks[0].worker_id), [str(task.lease_id) for task in tasks]
    report = CrashReport(
        url="memory://", worker_id=worker_id, leases=leases, cause="was killed by SIGSEGV", suspects=[], unreachable=[]
    )
    suspects = ids[: given.pop("suspects", 0)]
    if not given.pop("is_reachable", True):
        given["unreachable"] = suspects
    told = await settle(client, replace(report, suspects=suspects, **given))
    return ids, told


async def test_a_lone_suspect_is_charged_and_its_neighbours_are_not() -> None:
    async with Client(MemoryEngine()) as client:
        ids, told = await crashed(client, 4, suspects=1)
        assert told == CrashSettlement(charged=1, released=3)
        suspect, *others = [await client.get(task_id) for task_id in ids]
        assert suspect is not None and (suspect.status, suspect.failures) == (Status.PENDING, 1)
        assert lost_its_process(suspect) and "SIGSEGV" in str(suspect.error)
        assert all(task is not None and (task.failures, task.error) == (0, None) for task in others)


async def test_of_several_suspects_each_runs_alone_at_no_cost_and_is_charged_the_second_time() -> None:
    async with Client(MemoryEngine()) as client:
        ids, told = await crashed(client, 3, suspects=2)
        assert told == CrashSettlement(set_apart=2, released=1)
        tasks = [await client.get(task_id) for task_id in ids]
        assert [task is not None and lost_its_process(task) for task in tasks] == [True, True, False]
        assert [task and task.failures for task in tasks] == [0, 0, 0]
        again = await client.dequeue("t", batch_size=3)
        report = CrashReport(
            url="memory://",
            worker_id=str(again[0].worker_id),
            leases=[str(task.lease_id) for task in again],
            cause="exited with code 1",
            suspects=ids[:2],
        )
        assert await settle(client, report) == CrashSettlement(charged=2, released=1)


async def test_a_lone_task_beside_a_handler_left_behind_is_not_charged() -> None:
    async with Client(MemoryEngine()) as client:
        await client.enqueue("t", {"n": 1}, max_retries=2)
        (task,) = await client.dequeue("t")
        report = CrashReport(
            url="memory://",
            worker_id=str(task.worker_id),
            leases=[str(task.lease_id)],
            cause="was killed by SIGSEGV",
            suspects=[task.id, "the one that was left behind"],
        )
        assert await settle(client, report) == CrashSettlement(set_apart=1)
        released = await client.get(task.id)
        assert released is not None and released.failures == 0


async def test_tasks_of_another_process_of_the_same_name_are_left_alone() -> None:
    async with Client(MemoryEngine()) as client:
        ids, told = await crashed(client, 2, suspects=1, leases=["another"])
        assert told == CrashSettlement()
        tasks = [await client.get(task_id) for task_id in ids]
        assert [task and task.status for task in tasks] == [Status.RUNNING] * 2


def test_a_table_is_readable_through_its_descriptor() -> None:
    table, descriptor = RunTable.create()
    theirs = RunTable.attach(descriptor)
    assert (table.phase, table.url, table.runs(), table.leases()) == (Phase.STARTING, "", [], set())
    theirs.set_url("sqlite:///ü.db")
    theirs.begin(5.0)
    theirs.beat(7.0, 6.0)
    theirs.claim("lease-1")
    assert (table.phase, table.url, table.beats, table.leases()) == (
        Phase.WORKING,
        "sqlite:///ü.db",
        (7.0, 6.0),
        {"lease-1"},
    )
    theirs.end(99)
    assert (table.phase, table.exit_code) == (Phase.ENDED, 99)


@pytest.mark.parametrize("executor", ["thread", "async"])
async def test_a_handler_left_behind_stays_in_the_table_until_it_ends(
    bench: Bench, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may crash the process long after its task was settled."""
    monkeypatch.setattr(lease_keeper, "CANCEL_TIMEOUT", 0.1)
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 0.2)
    go = threading.Event()

    def block() -> None:
        go.wait(30)

    async def ablock() -> None:
        go.wait(30)

    bench.handle(block if executor == "thread" else ablock, name="block")
    table, descriptor = RunTable.create()
    worker = Worker(bench.client, bench.registry, WorkerSettings(poll=0.05), table=RunTable.attach(descriptor))
    running = asyncio.create_task(worker.run())
    task_id = await bench.submit("block", max_retries=0, timeout=0.1)
    assert (await bench.ended(task_id)).status is Status.FAILED
    await until(lambda: any(run.abandoned for run in table.runs()))
    assert [run.task_id for run in table.runs()] == [task_id]
    go.set()
    await until(lambda: not table.runs())
    worker.stop()
    await running


# --- when a process is killed


@asynccontextmanager
async def supervised(clock: ManualClock) -> AsyncIterator[tuple[WorkerProcess, RunTable]]:
    """A process that does nothing, and the table it would write."""
    table, descriptor = RunTable.create()
    theirs = RunTable.attach(descriptor)
    process = await asyncio.create_subprocess_exec("sleep", "600")
    child = WorkerProcess("w", process, table, lease=15.0, clock=clock)
    try:
        yield child, theirs
    finally:
        child.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


def watch(child: WorkerProcess, clock: ManualClock, seconds: float) -> bool:
    """Look every quarter of a second; whether the process was killed."""
    for _ in range(int(seconds * 4)):
        clock.advance(0.25)
        if child.check():
            return True
    return False


async def test_a_process_that_answers_is_left_alone_and_one_that_is_silent_is_killed() -> None:
    clock = ManualClock()
    async with supervised(clock) as (child, table):
        assert not watch(child, clock, 60)  # it imports the program, and may take its time
        table.begin(clock.now)
        for _ in range(100):
            table.beat(clock.now, clock.now)
            assert not watch(child, clock, 1)
        assert watch(child, clock, 15)
        assert await child.wait() == -9


async def test_a_loop_that_does_not_turn_is_silence_too() -> None:
    clock = ManualClock()
    async with supervised(clock) as (child, table):
        table.begin(clock.now)
        stuck_at, killed = clock.now, False
        for _ in range(15):
            table.beat(clock.now, stuck_at)
            killed = killed or watch(child, clock, 1)
        assert killed


async def test_a_supervisor_that_was_stopped_itself_starts_counting_again() -> None:
    clock = ManualClock()
    async with supervised(clock) as (child, table):
        table.begin(clock.now)
        assert not watch(child, clock, 1)
        clock.advance(3600)  # both were stopped, or the machine slept
        assert not watch(child, clock, 5)
        table.beat(clock.now, clock.now)
        assert not watch(child, clock, 5)


async def test_a_process_that_ended_its_work_and_does_not_exit_is_killed_with_its_own_exit_code() -> None:
    clock = ManualClock()
    async with supervised(clock) as (child, table):
        table.begin(clock.now)
        table.end(99)
        assert watch(child, clock, 15)
        assert await child.wait() == 99


async def test_signals_to_a_process_that_has_just_died_do_not_hide_how_it_ended() -> None:
    for _ in range(30):
        async with supervised(ManualClock()) as (child, _):
            child.kill()
            for _ in range(300):
                child.send_signal(signal.SIGTERM)
            assert await child.process.wait() == -signal.SIGKILL


def record(table: RunTable, task_id: str) -> None:
    """Enter a run as a worker process does."""
    handler = make_handler(lambda: None, type="t", options=make_options(lambda: None))
    run = Run(
        Task(id=task_id, type="t", queue="default", rank=0.0, available_at=0.0, created_at=0.0, updated_at=0.0),
        handler,
        lambda _, __: None,
    )
    run.executor = SimpleNamespace(kind=Executor.THREAD)
    table.start(run, 0.0)


async def test_no_task_is_charged_when_the_user_kills_the_process() -> None:
    async with supervised(ManualClock()) as (child, table):
        table.set_url("memory://")
        table.begin(0.0)
        record(table, "a")
        child.kill()
        report = child.crash_report(await child.wait(), blameless=(), timeout=1.0)
        assert report is not None
        assert report.suspects == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
async def test_a_lone_task_of_a_process_that_was_stopped_is_perhaps_not_to_blame() -> None:
    clock = ManualClock()
    async with supervised(clock) as (child, table):
        table.set_url("memory://")
        table.begin(clock.now)
        record(table, "a")
        child.send_signal(signal.SIGSTOP)
        await until(lambda: state_of(child.process.pid) == "T")
        assert watch(child, clock, 15)
        report = child.crash_report(await child.wait(), blameless=(), timeout=1.0)
        assert report is not None
        assert (report.suspects, report.is_uncertain) == (["a"], True)


async def test_a_task_that_is_perhaps_not_to_blame_runs_alone_next_time_at_no_cost() -> None:
    async with Client(MemoryEngine()) as client:
        _, told = await crashed(client, 2, suspects=1, is_uncertain=True)
        assert told == CrashSettlement(set_apart=1, released=1)


async def test_a_task_that_no_child_can_run_is_charged_only_the_second_time_if_it_is_perhaps_not_to_blame() -> None:
    async with Client(MemoryEngine()) as client:
        (task_id,), told = await crashed(client, 1, suspects=1, is_uncertain=True, is_reachable=False)
        assert told == CrashSettlement(set_apart=1)
        (task,) = await client.dequeue("t")
        assert (task.id, task.failures) == (task_id, 0)
        again = CrashReport(
            url="memory://",
            worker_id=str(task.worker_id),
            leases=[str(task.lease_id)],
            cause="did not answer",
            suspects=[task_id],
            unreachable=[task_id],
            is_uncertain=True,
        )
        assert await settle(client, again) == CrashSettlement(charged=1)
