"""A task runs one attempt at a time in a worker, and starts only under a lease that has not expired."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from qo.client import Client
from qo.clock import boot_clock
from qo.engines.memory import MemoryEngine
from qo.model import Filter, Status, Task, expire
from qo.running_task import current_task
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings
from tests.conditions import until, wait_until
from tests.worker.bench import Bench, claim_ahead


def block_event_loop(condition: Callable[[], bool]) -> None:
    """Keep the event loop from running while `condition` holds, as in a frozen process; threads go on.

    Otherwise it could renew an expired lease before a thread looks at it, and the run would rightly start.
    """
    wait_until(lambda: not condition())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def other(clock: ManualClock) -> AsyncIterator[Bench]:
    """A store whose time the test moves."""
    async with Client(MemoryEngine(clock)) as client:
        yield Bench(client)


async def lose(bench: Bench, clock: ManualClock, task_id: str) -> None:
    """What a monitor does to a task whose worker went silent."""
    clock.advance(100)
    (lost,) = await bench.client.engine.find(Filter(expired_for=0.0), limit=9)
    assert lost.id == task_id
    assert await bench.client.engine.apply([expire(lost, random=0.5, grace=0.0)]) == [True]
    clock.advance(10)


async def test_a_task_is_not_run_again_here_while_its_lost_attempt_still_runs(other: Bench, clock: ManualClock) -> None:
    lock, running, most = threading.Lock(), [0], [0]
    started, go = threading.Event(), threading.Event()

    def stubborn() -> int:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        started.set()
        try:
            go.wait(20)  # in C: the cancellation is not heard before it ends
            return current_task().attempt
        finally:
            with lock:
                running[0] -= 1

    def fine() -> None: ...

    other.handle(stubborn, concurrency=2)
    other.handle(fine)
    task_id = await other.submit("stubborn")
    async with other.working(concurrency=2, poll=0.01):
        assert await asyncio.to_thread(started.wait, 20)
        await lose(other, clock, task_id)

        async def tried_again() -> bool:
            clock.advance(1)
            return (await other.stored(task_id)).attempt >= 4

        await until(tried_again)  # claimed, seen to be running still, handed back
        assert (running[0], most[0]) == (1, 1)
        assert (await other.ended(await other.submit("fine"))).status is Status.COMPLETED  # in the other slot
        go.set()

        async def completed() -> Task | None:
            clock.advance(1)
            task = await other.stored(task_id)
            return task if task.status is Status.COMPLETED else None

        task = await until(completed)
    assert task.result == b"%d" % task.attempt and task.failures == 1
    assert most[0] == 1


async def test_slots_come_back_after_attempts_were_lost(other: Bench, clock: ManualClock) -> None:
    together = threading.Barrier(3)

    async def heeds() -> None:
        await asyncio.Event().wait()

    def needs_all() -> None:
        together.wait(20)

    other.handle(heeds, concurrency=3)
    other.handle(needs_all, name="all", concurrency=3)
    async with other.working(concurrency=3, poll=0.01, lease=1.0) as worker:
        for _ in range(4):
            task_id = await other.submit("heeds", max_retries=0)
            await until(lambda: worker.status.running)
            await lose(other, clock, task_id)
            await until(lambda: not worker.status.held)  # a renewal finds that the lease is lost
        assert worker.status.free_slots == 3
        ids = [await other.submit("all") for _ in range(3)]
        assert {(await other.ended(task_id)).status for task_id in ids} == {Status.COMPLETED}


async def test_a_task_claimed_before_the_process_was_frozen_does_not_start_after_its_lease(bench: Bench) -> None:
    frozen_for = [0.0]
    busy, go = threading.Event(), threading.Event()
    attempts: list[int] = []

    def first() -> None:
        busy.set()
        go.wait(20)

    def second() -> None:
        attempts.append(current_task().attempt)

    bench.handle(first)
    bench.handle(second)
    settings = WorkerSettings(concurrency=1, poll=0.01, grace=5.0, lease=60.0)
    worker = Worker(bench.client, bench.registry, settings, clock=lambda: boot_clock() + frozen_for[0])
    working = asyncio.create_task(worker.run())
    try:
        await bench.submit("first")
        assert await asyncio.to_thread(busy.wait, 20)
        second_id = await bench.submit("second")
        claim_ahead(worker, 5)
        await until(lambda: worker.status.waiting)
        frozen_for[0] = 61.0
        go.set()
        block_event_loop(lambda: bool(worker.status.waiting) or not worker.status.free_slots)
        assert (await bench.ended(second_id)).status is Status.COMPLETED
    finally:
        worker.stop()
        await working
    assert attempts and attempts[0] > 1
