"""After a pause nothing starts: at once for workers of this process, within about a second for others."""

import asyncio
import threading

import pytest

from qo import notes
from qo.clock import boot_clock
from qo.model import Status
from qo.queue import Queue
from qo.worker import Worker, WorkerSettings
from tests.worker.bench import Bench, claim_ahead

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("what", [{}, {"types": ["quick"]}, {"queues": ["default"]}], ids=["all", "a type", "a queue"])
async def test_nothing_starts_after_pause_has_returned(bench: Bench, what: dict[str, list[str]]) -> None:
    starts: list[float] = []

    def quick() -> None:
        starts.append(boot_clock())
        threading.Event().wait(0.005)

    bench.handle(quick)
    ids = [await bench.submit("quick") for _ in range(2000)]
    async with bench.working(concurrency=4):
        while len(starts) < 20:
            await asyncio.sleep(0.01)
        await bench.queue.switches.pause(**what)
        paused_at = boot_clock()
        while any(task and task.status is Status.RUNNING for task in await bench.queue.engine.get(ids)):
            await asyncio.sleep(0.01)  # what ran goes on, what was only held goes back
        assert [at for at in starts if at > paused_at] == []
        tasks = await bench.queue.engine.get(ids)
        assert {task.status for task in tasks if task} == {Status.COMPLETED, Status.PENDING}
        await bench.queue.switches.resume()
        assert (await bench.ended(ids[-1])).status is Status.COMPLETED


async def test_a_pause_by_another_client_of_this_process_counts_at_once(bench: Bench) -> None:
    """Another queue on the same store, as an App beside a tq has."""
    starts: list[float] = []

    async def quick() -> None:
        starts.append(boot_clock())

    bench.handle(quick)
    async with bench.working(concurrency=4):
        ids = [await bench.submit("quick") for _ in range(500)]
        await Queue(bench.queue.engine).switches.pause()
        paused_at = boot_clock()
        while any(task and task.status is Status.RUNNING for task in await bench.queue.engine.get(ids)):
            await asyncio.sleep(0.01)
        assert [at for at in starts if at > paused_at] == []


async def test_tasks_claimed_ahead_go_back_when_a_pause_is_seen(bench: Bench) -> None:
    """Without a word from this process, as when another one pauses."""
    busy, go = threading.Event(), threading.Event()

    def first() -> None:
        busy.set()
        go.wait(20)

    async def second() -> None: ...

    bench.handle(first)
    bench.handle(second)
    async with bench.working(concurrency=1, poll=0.01) as worker:
        await bench.submit("first")
        assert await asyncio.to_thread(busy.wait, 20)
        claim_ahead(worker, 20)
        ids = [await bench.submit("second") for _ in range(5)]
        while not all(task and task.status is Status.RUNNING for task in await bench.queue.engine.get(ids)):
            await asyncio.sleep(0.01)
        await notes.change(
            bench.queue.engine,
            notes.CONTROL,
            notes.Control,
            lambda _: notes.Control(paused_types=frozenset({"second"})),
        )
        while any(task and task.status is Status.RUNNING for task in await bench.queue.engine.get(ids)):
            await asyncio.sleep(0.01)
        go.set()
        assert {task.started_at for task in await bench.queue.engine.get(ids) if task} == {None}


async def test_a_pause_reaches_a_worker_that_is_ending(bench: Bench) -> None:
    bench.handle(lambda: 1, name="t")
    worker = Worker(bench.queue, bench.registry, WorkerSettings(poll=0.05))
    running = asyncio.create_task(worker.run())
    await bench.ended(await bench.submit("t"))
    worker.stop()
    await bench.queue.switches.pause()
    await asyncio.wait_for(running, 20)
    await bench.queue.switches.resume()
