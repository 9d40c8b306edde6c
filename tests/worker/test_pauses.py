"""After a pause nothing starts: at once for workers of this process, within about a second for others."""

import asyncio
import threading
from typing import Any

import pytest

from qo import notes
from qo.client import Client
from qo.executors import loop_executor
from qo.model import Status
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT, until
from tests.worker.bench import Bench, claim_ahead


async def none_running(bench: Bench, ids: list[str]) -> bool:
    return all(task and task.status is not Status.RUNNING for task in await bench.client.engine.get(ids))


async def all_running(bench: Bench, ids: list[str]) -> bool:
    return all(task and task.status is Status.RUNNING for task in await bench.client.engine.get(ids))


def _begun(worker: Worker, ids: list[str], starts: list[int]) -> set[int]:
    """Which tasks have begun, by their numbers: those that are about to call their handlers, and those in `starts`."""
    running = {ids.index(task_id) for task_id in worker.status.running}  # first: these may end meanwhile
    return running | set(starts)


@pytest.mark.parametrize("what", [{}, {"types": ["quick"]}, {"queues": ["default"]}], ids=["all", "a type", "a queue"])
async def test_nothing_starts_after_pause_has_returned(bench: Bench, what: dict[str, list[str]]) -> None:
    starts: list[int] = []

    def quick(n: int) -> None:
        starts.append(n)
        threading.Event().wait(0.005)

    bench.handle(quick)
    ids = [await bench.submit("quick", {"n": n}) for n in range(2000)]
    async with bench.working(concurrency=4) as worker:
        await until(lambda: len(starts) >= 20)
        await bench.client.controls.pause(**what)
        begun = _begun(worker, ids, starts)
        await until(none_running, bench, ids)  # what ran goes on, what was only held goes back
        assert set(starts) <= begun
        tasks = await bench.client.engine.get(ids)
        assert {task.status for task in tasks if task} == {Status.COMPLETED, Status.PENDING}
        await bench.client.controls.resume()
        assert (await bench.ended(ids[-1])).status is Status.COMPLETED


async def test_a_pause_by_another_client_of_this_process_takes_effect_immediately(bench: Bench) -> None:
    """Another queue on the same store, as an App beside a tq has."""
    starts: list[int] = []

    async def quick(n: int) -> None:
        starts.append(n)

    bench.handle(quick)
    async with bench.working(concurrency=4) as worker:
        ids = [await bench.submit("quick", {"n": n}) for n in range(500)]
        await Client(bench.client.engine).controls.pause()
        begun = _begun(worker, ids, starts)
        await until(none_running, bench, ids)
        assert set(starts) <= begun


@pytest.mark.parametrize("what", [{}, {"types": ["second"]}, {"queues": ["default"]}], ids=["all", "a type", "a queue"])
async def test_what_an_executor_took_before_the_pause_and_had_not_begun_goes_back(
    bench: Bench, what: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread may wait for the interpreter, a child process for its start, an event loop for a handler that blocks."""
    monkeypatch.setattr(loop_executor, "STALL_TIMEOUT", 60.0)
    busy, go = threading.Event(), threading.Event()
    starts: list[str] = []

    async def first() -> None:
        busy.set()
        go.wait(20)

    async def second() -> None:
        starts.append("second")

    bench.handle(first)
    bench.handle(second)
    async with bench.working(concurrency=2) as worker:
        blocker = await bench.submit("first")
        assert await asyncio.to_thread(busy.wait, 20)
        task_id = await bench.submit("second")
        await until(lambda: worker.status.free_slots == 0)
        await bench.client.controls.pause(**what)
        go.set()
        assert (await bench.ended(blocker)).status is Status.COMPLETED
        await until(none_running, bench, [task_id])
        assert starts == []
        await bench.client.controls.resume()
        assert (await bench.ended(task_id)).failures == 0


async def test_an_answer_that_is_older_than_the_pause_does_not_undo_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two reads of the switches may be answered in any order."""
    bench.handle(lambda: 1, name="t")
    scope, engine = bench.scope(), bench.client.engine
    read_note, sent, answer = engine.read_note, asyncio.Event(), asyncio.Event()

    async def answer_late(name: str) -> Any:
        note = await read_note(name)
        sent.set()
        await answer.wait()
        return note

    with monkeypatch.context() as slow:
        slow.setattr(engine, "read_note", answer_late)
        earlier = asyncio.create_task(scope.read())
        await sent.wait()
    await bench.client.controls.pause()
    await scope.read()
    answer.set()
    await earlier
    assert scope.is_paused


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
        await until(all_running, bench, ids)
        await notes.change(
            bench.client.engine,
            notes.CONTROL,
            notes.Controls,
            lambda _: notes.Controls(paused_types=frozenset({"second"})),
        )
        await until(none_running, bench, ids)
        go.set()
        assert {task.started_at for task in await bench.client.engine.get(ids) if task} == {None}


async def test_a_pause_reaches_a_worker_that_is_ending(bench: Bench) -> None:
    bench.handle(lambda: 1, name="t")
    worker = Worker(bench.client, bench.registry, WorkerSettings(poll=0.05))
    running = asyncio.create_task(worker.run())
    await bench.ended(await bench.submit("t"))
    worker.stop()
    await bench.client.controls.pause()
    await asyncio.wait_for(running, TIMEOUT)
    await bench.client.controls.resume()


async def test_a_pause_elsewhere_holds_within_one_poll_interval(bench: Bench) -> None:
    """Counted in tasks, each of which takes 20 ms or more, so that a slow machine does not matter."""
    starts: list[int] = []

    def short(n: int) -> None:
        starts.append(n)
        threading.Event().wait(0.02)

    bench.handle(short)
    ids = [await bench.submit("short", {"n": n}) for n in range(300)]
    async with bench.working(concurrency=1, poll=0.1) as worker:
        claim_ahead(worker, 100)
        for _ in range(4):
            await until(lambda number: len(starts) >= number, len(starts) + 10)
            await notes.change(
                bench.client.engine, notes.CONTROL, notes.Controls, lambda _: notes.Controls(paused=True)
            )
            before = len(starts)
            await until(none_running, bench, ids)
            assert len(starts) - before <= 3 * 0.1 / 0.02
            await bench.client.controls.resume()
