"""Features together that each have tests of their own."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import qo
from qo.client import Client, TaskOptions
from qo.client.batches import read_progress
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.model import Status
from qo.monitor.scheduler import Scheduler
from qo.store_time import StoreTime
from qo.testing import ManualClock
from tests.conditions import until
from tests.engines.http_server import server
from tests.worker import reporters
from tests.worker.bench import Bench

KEY = qo.Encrypted.new_key()


@pytest.fixture(params=["sqlite", "log", "http"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "log":
        yield f"file://{tmp_path}/bucket?layout=log"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/qo.db"
    else:
        with server() as running:
            async with running.serving(open_engine(f"sqlite:///{tmp_path}/qo.db")):
                yield running.url


async def test_unique_tasks_of_an_encrypted_batch_are_replaced_and_run_once(store: str) -> None:
    unique = qo.Unique(by=("customer",), on_duplicate="replace")
    async with qo.connect(store, codec=qo.Encrypted(keys=[KEY])) as client:
        bench = Bench(client)
        bench.handle(lambda customer, card: f"{customer}: {card}", "pay")
        options = {"unique": unique, "batch": "payments"}
        first = await client.enqueue("pay", {"customer": 1, "card": "4111"}, **options)  # type: ignore[arg-type]
        again = await client.enqueue("pay", {"customer": 1, "card": "5222"}, **options)  # type: ignore[arg-type]
        other = await client.enqueue("pay", {"customer": 2, "card": "6333"}, **options)  # type: ignore[arg-type]
        assert (again.id, again.new, other.new) == (first.id, False, True)
        async with qo.connect(store) as without_key:
            stored = await without_key.get(first.id)
            assert stored is not None and b"5222" not in stored.payload and stored.batch == "payments"
        await bench.run_all([first.id, other.id])
        assert [await client.result(id_) for id_ in (first.id, other.id)] == ["1: 5222", "2: 6333"]
        progress = await read_progress(client.engine, "payments")
        assert (progress.total, progress.done, progress.failed) == (2, 2, 0)


async def test_a_child_process_reports_its_progress_to_every_store(store: str, tmp_path: Path) -> None:
    async with Client(open_engine(store)) as client:
        bench = Bench(client)
        bench.handle(reporters.report, "work", executor="process")
        seen = tmp_path / "seen"
        task_id = await bench.submit("work", {"path": str(seen)}, batch="images")
        async with bench.working(capture_logs=True):
            await bench.seen(task_id, lambda task: task.progress == 0.25)
            progress = await read_progress(client.engine, "images")
            assert (progress.running, progress.done) == (1, 0)
            seen.touch()
            assert (await bench.ended(task_id)).status is Status.COMPLETED


async def test_a_running_task_of_a_batch_is_cancelled_from_elsewhere(store: str) -> None:
    async def wait_for_long() -> None:
        await asyncio.Event().wait()

    async with Client(open_engine(store)) as client, Client(open_engine(store)) as elsewhere:
        bench = Bench(client)
        bench.handle(wait_for_long, "wait")
        bench.handle(lambda: None, "quick")
        ids = [await bench.submit(name, batch="mixed") for name in ("wait", "quick")]
        async with bench.working():
            await bench.has_status(ids[0], Status.RUNNING)
            await bench.ended(ids[1])
            await elsewhere.cancel(ids[0])
            assert (await bench.ended(ids[0])).status is Status.CANCELLED
        progress = await read_progress(elsewhere.engine, "mixed")
        assert (progress.total, progress.done, progress.cancelled, progress.running) == (2, 2, 1, 0)


async def test_a_schedule_that_cancels_has_one_unique_task_in_a_paused_queue() -> None:
    clock = ManualClock(1_800_000_000.0)
    async with Client(MemoryEngine(clock), clock=clock) as client:
        bench = Bench(client)
        await client.controls.pause(queues=["slow"])
        options: TaskOptions = {"queue": "slow", "unique": qo.Unique()}
        await client.schedules.add("sync", every=60, task="sync", overlap="cancel", options=options)
        scheduler = Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=clock)
        for _ in range(3):
            clock.advance(60)
            await scheduler.check()
        tasks = sorted((await client.engine.snapshot()).tasks, key=lambda task: task.created_at)
        assert [task.status for task in tasks] == [Status.CANCELLED, Status.CANCELLED, Status.PENDING]
        await client.controls.resume(queues=["slow"])
        bench.handle(lambda: "synced", "sync")
        await bench.run_all([tasks[-1].id])
        assert await until(lambda: client.result(tasks[-1].id)) == "synced"
