"""What a worker holds starts in rank order, one attempt at a time, and only under a lease that still runs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from qo.client import Client
from qo.clock import boot_clock
from qo.engines.memory import MemoryEngine
from qo.model import ClaimRequest, Filter, Status, Task, expire
from qo.tasks import current_task, make_handler, make_options
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings, executors, lease_keeper
from qo.worker.async_executor import LoopExecutor
from qo.worker.claim_plan import ClaimPlan
from qo.worker.controls import ClaimScope
from qo.worker.run_table import LeasedRuns
from qo.worker.start_queue import StartQueue
from tests.conditions import until
from tests.worker.bench import Bench, claim_ahead

pytestmark = pytest.mark.timeout(60)


def block_event_loop(condition: Callable[[], bool]) -> None:
    """Keep the event loop from running while `condition` holds, as in a frozen process; threads go on.

    Otherwise it could renew an expired lease before a thread looks at it, and the run would rightly start.
    """
    while condition():
        time.sleep(0.001)


async def stored(queue: Client, task_id: str) -> Task:
    task = await queue.get(task_id)
    assert task is not None
    return task


async def has_status(queue: Client, task_id: str, status: Status) -> bool:
    return (await stored(queue, task_id)).status is status


async def has_started(queue: Client, task_id: str) -> bool:
    return (await stored(queue, task_id)).started_at is not None


async def claimed_task(queue: Client, task_id: str) -> Task | None:
    """The task once it has been claimed."""
    task = await stored(queue, task_id)
    return task if task.attempt else None


async def announces(queue: Client, loads: dict[str, tuple[int, int]]) -> bool:
    return {note.worker_id: (note.current_load, note.capacity) for note in await queue.workers()} == loads


async def test_tasks_start_in_rank_order_across_executors(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "MAX_SLOT_WAIT", 60.0)  # however slow this machine is, they are held together
    busy, go = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        busy.set()
        go.wait(20)

    def plain(name: str) -> None:
        order.append(name)

    async def aside(name: str) -> None:
        order.append(name)

    bench.handle(first)
    bench.handle(plain)
    bench.handle(aside)
    async with bench.working(concurrency=1, poll=0.01) as worker:
        await bench.submit("first")
        assert await asyncio.to_thread(busy.wait, 20)
        levels = {"low": 9, "medium": 6, "high": 0}
        ids = [
            await bench.submit(type, {"name": f"{level} {n}"}, priority=priority)
            for level, priority in levels.items()
            for n, type in enumerate(["aside", "plain", "plain", "aside"])
        ]
        claim_ahead(worker, 50)
        for task_id in ids:
            await until(has_status, bench.queue, task_id, Status.RUNNING)
        go.set()
        for task_id in ids:
            await bench.ended(task_id)
    assert order == [f"{level} {n}" for level in ("high", "medium", "low") for n in range(4)]


async def test_a_task_held_ahead_waits_for_a_claim_that_may_bring_tasks_before_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot and several types of unknown speed: one task of each was held, and low ones ran before medium."""
    order: list[str] = []
    claim = bench.queue.engine.claim

    async def from_afar(request: ClaimRequest) -> list[Task]:
        await asyncio.sleep(0.05)  # a slot becomes free while a claim is under way
        return await claim(request)

    monkeypatch.setattr(bench.queue.engine, "claim", from_afar)

    async def email() -> None:
        order.append("email")

    def image() -> None:
        order.append("image")

    async def report() -> None:
        order.append("report")

    bench.handle(email)
    bench.handle(image)
    bench.handle(report)
    bench.handle(lambda: None, "unused")
    ids = [await bench.submit("image", priority=6) for _ in range(4)]
    ids += [await bench.submit("report", priority=9)]
    ids += [await bench.submit("email", priority=0) for _ in range(2)]
    async with bench.working(concurrency=1) as worker:
        monkeypatch.setattr(worker.prefetch, "ahead", lambda: 20)  # as if many had ended lately
        for task_id in ids:
            await bench.ended(task_id)
    assert order == ["email"] * 2 + ["image"] * 4 + ["report"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def other(clock: ManualClock) -> AsyncIterator[Bench]:
    """A store whose time the test moves."""
    async with Client(MemoryEngine(clock)) as queue:
        yield Bench(queue)


async def lose(bench: Bench, clock: ManualClock, task_id: str) -> None:
    """What a monitor does to a task whose worker went silent."""
    clock.advance(100)
    (lost,) = await bench.queue.engine.find(Filter(expired_for=0.0), limit=9)
    assert lost.id == task_id
    assert await bench.queue.engine.apply([expire(lost, luck=0.5, grace=0.0)]) == [True]
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
            return (await stored(other.queue, task_id)).attempt >= 4

        await until(tried_again)  # claimed, seen to be running still, handed back
        assert (running[0], most[0]) == (1, 1)
        assert (await other.ended(await other.submit("fine"))).status is Status.COMPLETED  # in the other slot
        go.set()

        async def completed() -> Task | None:
            clock.advance(1)
            task = await stored(other.queue, task_id)
            return task if task.status is Status.COMPLETED else None

        task = await until(completed)
    assert task.result == b"%d" % task.attempt and task.failures == 1
    assert most[0] == 1


async def test_slots_come_back_after_attempts_were_lost(other: Bench, clock: ManualClock) -> None:
    together = threading.Barrier(3)

    async def heeds() -> None:
        await asyncio.sleep(3600)

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
    worker = Worker(bench.queue, bench.registry, settings, clock=lambda: boot_clock() + frozen_for[0])
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


async def test_a_worker_does_not_hoard_slow_tasks_after_many_quick_ones(bench: Bench) -> None:
    go = threading.Event()
    running: set[str] = set()

    def quick() -> None: ...

    def slow() -> None:
        running.add(current_task().id)
        go.wait(30)

    bench.handle(quick)
    bench.handle(slow)
    quick_ids = [await bench.submit("quick") for _ in range(2000)]
    async with bench.working(concurrency=8, heartbeat=0.1) as first:
        for task_id in quick_ids:
            await bench.ended(task_id)
        slow_ids = [await bench.submit("slow") for _ in range(40)]
        await until(lambda: len(running) == 8)
        async with bench.working(concurrency=40, heartbeat=0.1) as second:
            await until(lambda: len(running) == 40)  # all that the first one cannot start
            for worker, most in ((first, 8), (second, 40)):
                assert len(worker.status.running) <= most
            loads = {first.id: (8, 8), second.id: (32, 40)}  # running tasks, and slots
            await until(announces, bench.queue, loads)
            go.set()
            for task_id in slow_ids:
                assert (await bench.ended(task_id)).attempt == 1


async def test_a_quick_task_that_waits_behind_slow_ones_goes_back(bench: Bench) -> None:
    busy, go, ran = threading.Barrier(3), threading.Event(), threading.Event()

    def slow() -> None:
        busy.wait(20)
        go.wait(30)

    def quick() -> None:
        ran.set()

    bench.handle(slow)
    bench.handle(quick)
    async with bench.working(concurrency=2, poll=0.01, types=("slow", "quick")) as first:
        for _ in range(2):
            await bench.submit("slow")
        await asyncio.to_thread(busy.wait, 20)
        claim_ahead(first, 10)
        task_id = await bench.submit("quick")
        claimed = await until(claimed_task, bench.queue, task_id)
        assert claimed.started_at is None
        claim_ahead(first, 0)
        async with bench.working(concurrency=1, types=("quick",)):
            assert await asyncio.to_thread(ran.wait, 20)
        go.set()


async def test_started_at_is_when_the_handler_began(bench: Bench) -> None:
    busy, go = threading.Event(), threading.Event()

    def first() -> None:
        busy.set()
        go.wait(30)

    bench.handle(first)
    async with bench.working(concurrency=1, poll=0.01) as worker:
        one = await bench.submit("first")
        assert await asyncio.to_thread(busy.wait, 20)
        claim_ahead(worker, 10)
        two = await bench.submit("first")
        await until(has_started, bench.queue, one)  # the start of a longer run is written before its end
        waiting = await until(claimed_task, bench.queue, two)
        assert waiting.started_at is None
        go.set()
        before, after = await bench.ended(one), await bench.ended(two)
    assert before.completed_at and after.started_at
    assert after.started_at > waiting.updated_at


@pytest.mark.parametrize("unused", [0, 1, 3])
async def test_types_that_have_no_tasks_do_not_keep_quick_ones_from_being_claimed_ahead(unused: int) -> None:
    async def quick() -> None: ...

    names = ["quick", *(f"unused{n}" for n in range(unused))]
    handlers = {name: make_handler(quick, type=name, options=make_options(quick)) for name in names}
    clock, settings = ManualClock(), WorkerSettings(concurrency=8)
    scope = ClaimScope(MemoryEngine(), handlers, settings, worker_id="w", clock=clock)
    claiming = ClaimPlan(scope, LeasedRuns(), StartQueue(8), settings, worker_id="w", clock=clock)
    for _ in range(800):
        claiming.prefetch.ended("quick", 0.0005)
    clock.advance(0.1)
    request = claiming.request()
    assert request is not None
    assert request.limit == 400  # half of what ran in the last 0.1 s
    assert request.per_type_limits.get("quick", request.limit) == 400
    of_unknown_speed = [request.per_type_limits[name] for name in names if name != "quick"]
    assert len(of_unknown_speed) == unused and sum(of_unknown_speed) <= 8


async def test_any_number_of_blocked_event_loops_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LOOP_CLOSE_TIMEOUT", 0.5)
    several, free = executors.Executors(WorkerSettings(), result_limit=lambda: 1000), threading.Event()
    for _ in range(20):
        loop = LoopExecutor(several.queue, result_limit=lambda: 1000)
        loop._loop.call_soon_threadsafe(free.wait, 60)
        several._stalled.append(loop)
    began = boot_clock()
    await several.close()
    took = boot_clock() - began
    free.set()
    for loop in several._stalled:
        await asyncio.to_thread(loop._thread.join, 20)
    assert took < 5.0, "one after the other they take 10 s, and the supervisor kills who takes so long to end"
