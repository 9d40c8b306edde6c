"""A worker claims ahead only what will start soon."""

import asyncio
import threading

import pytest

from qo.client import Client
from qo.running_task import current_task
from qo.testing import ManualClock
from qo.worker.claim_plan import OvertakenTypes
from tests.conditions import delay, until
from tests.worker.bench import Bench, claim_ahead


async def announces(client: Client, loads: dict[str, tuple[int, int]]) -> bool:
    return {note.worker_id: (note.current_load, note.capacity) for note in await client.workers()} == loads


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
            await until(announces, bench.client, loads)
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
        claimed = await bench.seen(task_id, lambda task: task.attempt)
        assert claimed.started_at is None
        claim_ahead(first, 0)
        async with bench.working(concurrency=1, types=("quick",)):
            assert await asyncio.to_thread(ran.wait, 20)
        go.set()


async def test_a_task_behind_many_of_another_type_is_not_claimed_again_and_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.worker.lease_keeper.MAX_SLOT_WAIT", 0.1)

    async def quick() -> None:
        await delay(0.01)

    async def other() -> None: ...

    bench.handle(quick)
    bench.handle(other)
    for _ in range(150):
        await bench.submit("quick")
    last = await bench.submit("other")
    async with bench.working(concurrency=1):
        task = await bench.ended(last)
    assert task.attempt <= 3  # it was claimed too early at most twice


def test_a_type_is_overtaken_only_by_others_that_start_meanwhile() -> None:
    clock = ManualClock()
    overtaken = OvertakenTypes(clock)
    overtaken.unstarted("slow", clock() - 2)
    assert overtaken.current() == frozenset()  # nothing has started: the worker was stalled
    overtaken.began("quick", clock() - 1)
    overtaken.unstarted("quick", clock() - 2)
    assert overtaken.current() == frozenset()
    overtaken.unstarted("slow", clock() - 2)
    assert overtaken.current() == {"slow"}
    assert [overtaken.needs_first_task(0.1) for _ in range(2)] == [True, False]
    clock.advance(0.2)
    assert not overtaken.needs_first_task(1.0)
    assert overtaken.needs_first_task(0.1)
    overtaken.began("slow", clock())
    assert overtaken.current() == frozenset()
