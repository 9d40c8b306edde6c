"""A worker that is asked to drain finishes what it runs, takes nothing more, and leaves."""

import asyncio
import logging
import threading

import pytest

from qo import notes
from qo.client import Client
from qo.model import NEW, Status
from qo.notes import Controls
from qo.worker import Worker, WorkerSettings
from tests.conditions import until
from tests.worker.bench import Bench


async def is_registered(client: Client, worker: Worker) -> bool:
    return worker.id in {note.worker_id for note in await client.workers()}


async def test_it_finishes_what_it_runs_and_leaves(bench: Bench, client: Client) -> None:
    started, let_go = threading.Event(), threading.Event()

    def hold() -> str:
        started.set()
        let_go.wait(20)
        return "done"

    bench.handle(hold)
    worker = Worker(client, bench.registry)
    running = asyncio.create_task(worker.run())
    first = await bench.submit("hold")
    assert await asyncio.to_thread(started.wait, 20)
    await client.controls.drain([worker.id])
    await until(lambda: worker.drain_requested)
    second = await bench.submit("hold")
    let_go.set()
    await running
    ended, waiting = await client.engine.get([first, second])
    assert ended and ended.status is Status.COMPLETED
    assert waiting and waiting.status is Status.PENDING
    assert await client.workers() == [] and (await client.controls.read()).draining == frozenset()


async def test_the_next_worker_of_that_name_works_as_usual(bench: Bench, client: Client) -> None:
    bench.handle(lambda: 1, name="t")
    await client.controls.drain(["w"])  # whoever it was meant for was killed before it could obey
    async with bench.working(id="w") as worker:
        await bench.ended(await bench.submit("t"))
        assert not worker.drain_requested


async def test_others_work_on(bench: Bench, client: Client) -> None:
    bench.handle(lambda: 1, name="t")
    async with bench.working(id="stays") as stays:
        leaves = Worker(client, bench.registry)
        running = asyncio.create_task(leaves.run())
        await until(is_registered, client, leaves)
        await client.controls.drain([leaves.id])
        await running
        assert (await bench.ended(await bench.submit("t"))).worker_id == "stays" and not stays.drain_requested


async def test_the_note_forgets_workers_that_are_gone(client: Client) -> None:
    await client.controls.drain(["gone"])
    await client.engine.write_note(notes.WORKERS + "here", b"{}", expected=NEW)
    assert (await client.controls.drain(["here"])).draining == frozenset({"here"})
    assert await client.controls.read() == Controls(draining=frozenset({"here"}))


async def test_a_drain_waits_for_the_tokens_of_a_limited_type(bench: Bench) -> None:
    bench.handle(lambda: 1, name="quick")
    bench.handle(lambda: 1, name="limited", rate_limit=10)
    ids = [await bench.submit(type) for type in ["quick"] * 10 + ["limited"] * 25]
    await Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05)).run()
    tasks = await bench.client.engine.get(ids)
    assert [task.status for task in tasks if task] == [Status.COMPLETED] * 35


@pytest.mark.parametrize("what", [{}, {"types": ["held"]}, {"queues": ["night"]}], ids=["all", "a type", "a queue"])
async def test_a_drain_ends_at_a_pause_and_lists_what_is_left(
    bench: Bench, caplog: pytest.LogCaptureFixture, what: dict[str, list[str]]
) -> None:
    bench.handle(lambda: 1, name="held")
    bench.handle(lambda: 1, name="free")
    ids = [await bench.submit(type, queue="night") for type in ["held"] * 3] + [await bench.submit("free")]
    await bench.client.controls.pause(**what)
    with caplog.at_level(logging.INFO, "qo.worker"):
        await Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05)).run()
    tasks = await bench.client.engine.get(ids)
    assert [task.status for task in tasks if task][:3] == [Status.PENDING] * 3
    assert "tasks left in the queue: " in caplog.text and "3 held (" in caplog.text and "paused" in caplog.text


async def test_a_drain_reports_which_tasks_are_due_later_and_which_need_another_worker(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.handle(lambda: 1, name="report")
    await bench.submit("report", delay=3600.0)
    for _ in range(2):
        await bench.submit("report", needs=("gpu",))
    with caplog.at_level(logging.INFO, "qo.worker"):
        await Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05)).run()
    assert "2 report (needs gpu)" in caplog.text and "1 report (scheduled, the first at " in caplog.text
