"""Batches: tasks that are submitted together, their progress, and their end."""

import asyncio
import threading

import pytest

import qo
from qo.app import App
from qo.client import Client
from qo.client.batches import list_batches, pause_between, read_progress, wait_for_batch
from qo.errors import InvalidSetting, InvalidTask, ResultTimeout
from qo.model import Filter, complete, fail
from qo.testing import ManualClock
from qo.testing.samples import claim_one


def test_tasks_inside_a_batch_belong_to_it(app: App) -> None:
    @app.task
    def resize(name: str) -> None: ...

    with qo.batch("thumbnails", app) as batch:
        first = resize.enqueue(name="a")
        app.submit([resize.describe(name="b")])
        with qo.batch("inner") as inner:
            nested = app.enqueue("resize", {"name": "c"})
        explicit = resize.using(batch="mine").enqueue(name="d")
    outside = resize.enqueue(name="e")
    shown = {handle.id: task.batch for handle in (first, nested, explicit, outside) if (task := app.get(handle.id))}
    assert shown == {first.id: batch.id, nested.id: inner.id, explicit.id: "mine", outside.id: None}
    assert batch.id.startswith("thumbnails-") and batch.progress().total == 2
    assert len(app.tasks(Filter(batch=batch.id))) == 2


def test_two_batches_of_one_name_are_two(app: App) -> None:
    assert qo.batch("thumbnails").id != qo.batch("thumbnails").id
    again = qo.batch("thumbnails", app, id="thumbnails-1")
    assert again.id == "thumbnails-1" and not again.progress().is_done


async def test_async_code_groups_its_own_tasks(app: App) -> None:
    @app.task
    async def resize(name: str) -> None: ...

    async def submit(name: str) -> qo.Batch:
        async with qo.batch(name, app) as batch:
            await asyncio.gather(*(resize.aenqueue(name=f"{name}{n}") for n in range(3)))
        return batch

    batches = await asyncio.gather(submit("x"), submit("y"))
    assert [(await batch.aprogress()).total for batch in batches] == [3, 3]


async def test_async_code_waits_for_the_end(app: App) -> None:
    async with qo.batch("x", app) as batch:
        handle = await app.aenqueue("t")
    with pytest.raises(ResultTimeout):
        await batch.wait_async(timeout=0.01)
    await app.acancel(handle.id)
    assert (await batch.wait_async(timeout=30)).cancelled == 1


def test_another_thread_names_the_batch(app: App) -> None:
    with qo.batch("b", app) as batch:
        thread = threading.Thread(target=lambda: app.enqueue("t", batch=batch.id))
        thread.start()
        thread.join()
        other = threading.Thread(target=lambda: app.enqueue("t"))
        other.start()
        other.join()
    assert batch.progress().total == 1


async def test_progress_counts_by_status_and_estimates_the_rest(client: Client, clock: ManualClock) -> None:
    for _ in range(10):
        await client.enqueue("t", batch="b")
    assert (await read_progress(client.engine, "b")).eta is None
    for n in range(4):
        task = await claim_one(client.engine)
        clock.advance(2)
        await client.engine.apply([complete(task) if n else fail(task, "no")])
    await claim_one(client.engine)
    progress = await read_progress(client.engine, "b")
    assert (progress.total, progress.completed, progress.failed, progress.running) == (10, 3, 1, 1)
    assert (progress.pending, progress.done, progress.fraction, progress.is_done) == (5, 4, 0.4, False)
    assert progress.eta == pytest.approx(12.0)


async def test_tasks_that_are_due_later_have_no_estimate(client: Client, clock: ManualClock) -> None:
    await client.enqueue("t", batch="b")
    await client.enqueue("t", batch="b")
    later = await client.enqueue("t", batch="b", delay=3600)
    task = await claim_one(client.engine)
    clock.advance(2)
    await client.engine.apply([complete(task)])
    assert (await read_progress(client.engine, "b")).eta is None
    await client.run_now(later.id)
    assert (await read_progress(client.engine, "b")).eta == pytest.approx(4.0)


async def test_waiting_ends_with_the_last_task(client: Client) -> None:
    handle = await client.enqueue("t", batch="b")
    with pytest.raises(ResultTimeout, match="batch b"):
        await wait_for_batch(client.engine, "b", timeout=0.01)
    waiting = asyncio.create_task(wait_for_batch(client.engine, "b", timeout=30))
    await client.cancel(handle.id)
    assert (await waiting).cancelled == 1


def test_a_batch_without_tasks_is_done(app: App) -> None:
    with qo.batch("empty", app) as empty:
        pass
    assert empty.wait().total == 0


async def test_batches_are_listed_newest_first(client: Client, clock: ManualClock) -> None:
    for name in ("old", "new", "old"):
        await client.enqueue("t", batch=name)
        clock.advance(1)
    await client.enqueue("t")
    listed = await list_batches(client.engine)
    assert [(batch.id, batch.total) for batch in listed] == [("old", 2), ("new", 1)]


def test_a_wrong_name_is_refused(app: App) -> None:
    with pytest.raises(InvalidTask, match="batch"):
        qo.batch("a b")
    with pytest.raises(InvalidTask, match="batch"):
        app.enqueue("t", batch="a b")
    with pytest.raises(InvalidSetting, match="app"):
        qo.batch("b").progress()


def test_expensive_counts_are_made_less_often() -> None:
    assert pause_between(0.001, 2.0) == 2.0
    assert pause_between(1.5, 2.0) == 15.0
    assert pause_between(30.0, 2.0) == 60.0
    assert pause_between(30.0, 300.0) == 300.0
