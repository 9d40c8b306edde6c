"""Leases are kept while handlers run, and given up when they are lost or the worker ends."""

import asyncio
import threading

from qo.model import Status, cancel
from qo.notes import WorkerNote
from tests.conditions import until
from tests.worker.bench import Bench, claim_ahead


async def test_a_lease_is_renewed_while_the_handler_blocks_its_own_loop(bench: Bench) -> None:
    release = threading.Event()

    async def blocks() -> None:
        release.wait(20)

    bench.handle(blocks)
    task_id = await bench.submit("blocks")
    async with bench.working(lease=0.3):
        renewed = await bench.seen(task_id, lambda task: task.version >= 5)
        assert renewed.status is Status.RUNNING
        assert renewed.lease_expires_at and renewed.started_at
        assert renewed.lease_expires_at > renewed.started_at + 0.3
        release.set()
        assert (await bench.ended(task_id)).status is Status.COMPLETED


async def test_a_cancelled_task_is_stopped_at_the_next_renewal(bench: Bench) -> None:
    stopped = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    bench.handle(waits)
    task_id = await bench.submit("waits")
    async with bench.working(lease=0.2):
        await bench.has_status(task_id, Status.RUNNING)
        await bench.client.engine.apply([cancel(task_id)])
        assert await asyncio.to_thread(stopped.wait, 10)
    task = await bench.client.get(task_id)
    assert task is not None
    assert task.status is Status.CANCELLED


async def test_stopping_waits_for_what_runs_and_hands_back_what_does_not_end(bench: Bench) -> None:
    started, go, cancelled = threading.Barrier(3), threading.Event(), threading.Event()

    async def quick() -> str:
        await asyncio.to_thread(started.wait, 20)
        await asyncio.to_thread(go.wait, 20)
        return "done"

    async def slow() -> None:
        await asyncio.to_thread(started.wait, 20)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench.handle(quick)
    bench.handle(slow)
    quick_id, slow_id = await bench.submit("quick"), await bench.submit("slow", max_retries=0)
    async with bench.working(grace=1.0) as worker:
        await asyncio.to_thread(started.wait, 20)  # a claimed task that has not begun may be handed back too
        worker.stop()
        late = await bench.submit("quick")  # after the stop: before it, the worker may rightly take this one too
        go.set()
    assert (await bench.ended(quick_id)).result == b'"done"'
    back, untouched = await bench.client.get(slow_id), await bench.client.get(late)
    assert back is not None
    assert untouched is not None
    assert (back.status, back.failures, back.attempt) == (Status.PENDING, 0, 1)
    assert cancelled.is_set()
    assert untouched.attempt == 0
    assert await bench.client.workers() == []


async def test_aborting_releases_everything_immediately(bench: Bench) -> None:
    async def slow() -> None:
        await asyncio.Event().wait()

    bench.handle(slow)
    ids = [await bench.submit("slow", max_retries=0) for _ in range(3)]
    async with bench.working(grace=60.0) as worker:
        for task_id in ids:
            await bench.has_status(task_id, Status.RUNNING)
        worker.abort()
    for task_id in ids:
        task = await bench.client.get(task_id)
        assert task is not None
        assert (task.status, task.failures) == (Status.PENDING, 0)


async def test_tasks_claimed_ahead_are_handed_back_unstarted(bench: Bench) -> None:
    go, started, both = threading.Event(), [], threading.Barrier(3)

    def waits(n: int) -> None:
        started.append(n)
        both.wait(20)
        go.wait(20)

    bench.handle(waits)
    ids = [await bench.submit("waits", {"n": n}) for n in range(6)]
    async with bench.working(concurrency=2) as worker:
        claim_ahead(worker, 6)
        for task_id in ids:
            await bench.has_status(task_id, Status.RUNNING)
        await asyncio.to_thread(both.wait, 20)
        worker.stop()
        await bench.has_status(ids[-1], Status.PENDING)
        go.set()
    tasks = [await bench.client.get(task_id) for task_id in ids]
    assert len(started) == 2
    assert sorted(task.status.value for task in tasks if task) == ["completed"] * 2 + ["pending"] * 4
    assert not any(task.failures for task in tasks if task)


async def test_a_worker_registers_with_its_counters_and_leaves(bench: Bench) -> None:
    async def fine() -> None: ...

    async def bad() -> None:
        raise ValueError

    bench.handle(fine)
    bench.handle(bad)
    ids = [await bench.submit("fine"), await bench.submit("fine"), await bench.submit("bad", max_retries=0)]
    async with bench.working(id="w-1", heartbeat=0.05, capabilities=("gpu",), concurrency=7):
        for task_id in ids:
            await bench.ended(task_id)
        note = await until(registration, bench, 3)
    assert (note.worker_id, note.status, note.tasks_completed, note.tasks_failed) == ("w-1", "active", 2, 1)
    assert (note.capacity, note.capabilities, sorted(note.types)) == (7, ("gpu",), ["bad", "fine"])
    assert await bench.client.workers() == []


async def registration(bench: Bench, settled: int) -> WorkerNote | None:
    """The note of the only worker, once it has settled so many tasks."""
    notes = await bench.client.workers()
    return next((note for note in notes if note.tasks_completed + note.tasks_failed == settled), None)
