"""Held tasks start in rank order. `started_at` is the start of the handler."""

import asyncio
import threading

import pytest

from qo.client import Client
from qo.clock import boot_clock
from qo.executors import executors, loop_executor
from qo.executors.run import Run
from qo.executors.start_queue import StartQueue
from qo.hooks import Hooks
from qo.model import ClaimRequest, Status, Task
from qo.tasks import make_handler, make_options
from qo.testing import ManualClock
from qo.testing.samples import claim, new
from qo.worker import lease_keeper
from tests.conditions import TIMEOUT, delay, until
from tests.worker.bench import Bench, claim_ahead


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
            await bench.has_status(task_id, Status.RUNNING)
        go.set()
        for task_id in ids:
            await bench.ended(task_id)
    assert order == [f"{level} {n}" for level in ("high", "medium", "low") for n in range(4)]


async def test_a_task_held_ahead_waits_for_a_claim_that_may_bring_tasks_before_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one slot and several types of unknown speed: one task of each was held, and low ones ran before medium."""
    order: list[str] = []
    claim = bench.client.engine.claim

    async def from_afar(request: ClaimRequest) -> list[Task]:
        await delay(0.05)  # a slot becomes free while a claim is under way
        return await claim(request)

    monkeypatch.setattr(bench.client.engine, "claim", from_afar)

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


async def test_a_claim_of_tasks_that_go_back_lets_earlier_ones_start(client: Client) -> None:
    class Starting:
        def pull(self) -> bool:
            taken.append(queue.take(self))
            return True

    taken: list[Run | None] = []
    queue = StartQueue(1)
    handler = make_handler(lambda: None, type="t", options=make_options(lambda: None))
    await client.engine.add([new(n, priority=n) for n in range(4)])
    waiting, between, back, _ = await claim(client.engine)
    held = [Run(task, handler, lambda *_: None) for task in (waiting, between)]
    for run in held:
        run.executor = Starting()
    queue.close()
    queue.put(held)
    queue.put([], is_full=True, others=[between])  # the limits let none of the claimed tasks start
    queue.reopen()
    assert (taken, queue.needs_claim) == ([held[0]], False)
    queue.put([], is_full=True, others=[waiting])
    queue.release_slot(held[0])
    queue.dispatch()
    assert (taken, queue.needs_claim) == ([held[0]], True)  # a task between the two may be in the store
    queue.put([], cut=["t"], others=[back])
    assert (taken, queue.needs_claim) == (held, False)


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
        await bench.seen(
            one, lambda task: task.started_at is not None
        )  # the start of a longer run is written before its end
        waiting = await bench.seen(two, lambda task: task.attempt)
        assert waiting.started_at is None
        go.set()
        before, after = await bench.ended(one), await bench.ended(two)
    assert before.completed_at and after.started_at
    assert after.started_at > waiting.updated_at


async def test_any_number_of_blocked_event_loops_are_closed_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_executor, "LOOP_CLOSE_TIMEOUT", 0.5)
    clock, blocked, free, before = ManualClock(), threading.Semaphore(0), threading.Event(), set(threading.enumerate())
    several = executors.Executors(20, result_limit=lambda: 1000, hooks=Hooks(), worker_id="w", clock=clock)

    async def block() -> None:
        blocked.release()
        free.wait(60)

    handler = make_handler(block, type="block", options=make_options(block))
    for _ in range(20):
        await bench.submit("block")
        (task,) = await bench.client.dequeue("block")
        several.start([Run(task, handler, lambda *_: None)])
        assert await asyncio.to_thread(blocked.acquire, timeout=TIMEOUT)
        clock.advance(1)
        several.replace_stalled_loop()  # asks the loop for an answer
        clock.advance(60)
        several.replace_stalled_loop()  # gives the next run another loop
    loops = [thread for thread in set(threading.enumerate()) - before if thread.name == "qo-handlers"]
    assert len(loops) == 21
    began = boot_clock()
    await several.close()
    took = boot_clock() - began
    free.set()
    await until(lambda: not any(thread.is_alive() for thread in loops))
    assert took < 5.0, "one after the other they take 10 s, and the supervisor kills a worker that ends so late"
