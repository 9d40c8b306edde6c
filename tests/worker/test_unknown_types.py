"""Tasks of types that no worker has a handler for stay pending, cost nothing, and are failed only on request."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from qo.handled_types import read_consumers
from qo.model import ANY, ClaimRequest, Status, Task
from qo.notes import KNOWN_TYPES, WORKERS, KnownTypes, WorkerNote, make_types_known, read
from qo.testing.clock import ManualClock
from qo.worker import Worker, WorkerSettings
from tests.conditions import TIMEOUT, until
from tests.worker.bench import Bench
from tests.worker.unknown_type_checks import clock, timed, unknown_types

__all__ = ["clock", "timed"]  # fixtures


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "qo.worker"]


async def stored(bench: Bench, task_id: str) -> Task:
    task = await bench.client.get(task_id)
    assert task is not None
    return task


async def test_a_type_without_a_worker_stays_pending_until_one_starts(bench: Bench) -> None:
    bench.handle(lambda: 1, name="known")
    early = await bench.submit("early")
    before = await stored(bench, early)
    async with bench.working():
        for _ in range(3):
            assert (await bench.ended(await bench.submit("known"))).status is Status.COMPLETED
    assert await stored(bench, early) == before
    bench.handle(lambda: 2, name="early")
    async with bench.working():
        task = await bench.ended(early)
    assert (task.status, task.attempt, task.failures) == (Status.COMPLETED, 1, 0)


async def test_it_is_warned_about_once_a_minute_with_the_count(
    bench: Bench, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    bench.handle(lambda: 1, name="known")
    for type in ("typo", "typo", "known"):
        await bench.submit(type)
    checked = unknown_types(bench, clock)

    async def warnings(checks: int, seconds: float) -> list[str]:
        caplog.clear()
        for _ in range(checks):
            await checked.check()
            clock.advance(seconds)
        return logged(caplog)

    assert await warnings(1, 5) == []  # workers that start together register one by one
    (first,) = await warnings(12, 5)
    assert first.startswith("no running worker handles the types of 2 pending tasks: typo (2).")
    await bench.submit("typo")
    (second,) = await warnings(12, 5)
    assert second.startswith("no running worker handles the types of 3 pending tasks")
    bench.handle(lambda: 2, name="typo")
    async with bench.working(types=("typo",)):
        await bench.ended(await bench.submit("typo"))
    assert await warnings(12, 10) == []


async def test_a_type_whose_workers_have_left_is_warned_about_too(
    timed: Bench, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.handle(lambda: 1, name="elsewhere")
    async with timed.working():
        await timed.ended(await timed.submit("elsewhere"))
    await timed.submit("elsewhere")
    here = Bench(timed.client)
    here.handle(lambda: 1, name="known")
    checked = unknown_types(here, clock)
    for _ in range(3):
        await checked.check()
        clock.advance(5)
    (warning,) = logged(caplog)
    assert warning.startswith("no running worker handles the types of 1 pending task: elsewhere (1).")
    caplog.clear()
    note = WorkerNote(worker_id="w", started_at=clock.now, last_heartbeat=clock.now, capacity=1, types=("elsewhere",))
    await timed.client.engine.write_note(WORKERS + "w", msgspec.json.encode(note), expected=ANY)
    clock.advance(60)
    await checked.check()
    assert logged(caplog) == []
    clock.advance(60)  # it is silent, and counts as dead
    for _ in range(2):
        await checked.check()
        clock.advance(5)
    assert len(logged(caplog)) == 1


async def test_checks_are_rare(bench: Bench, clock: ManualClock) -> None:
    checked = unknown_types(bench, clock)
    await checked.check()
    assert (checked.pause(0.0), checked.pause(1.0)) == (5.0, 300.0)
    await bench.submit("typo")
    await checked.check()
    assert (checked.pause(0.0), checked.pause(1.0)) == (5.0, 5.0)  # then the first warning is due
    clock.advance(5)
    await checked.check()
    assert (checked.pause(0.0), checked.pause(1.0)) == (5.0, 60.0)


async def test_a_worker_claims_only_its_types_regardless_of_what_waits_in_front(bench: Bench) -> None:
    asked: list[ClaimRequest] = []

    class Watched(MemoryEngine):
        async def claim(self, request: ClaimRequest) -> list[Task]:
            asked.append(request)
            return await super().claim(request)

    async with Client(Watched()) as client:
        bench = Bench(client)
        bench.handle(lambda: 1, name="known")
        many = [client.new_task("typo", b"{}", priority=0) for _ in range(2_000)]
        await client.submit_many(many)
        async with bench.working(concurrency=1):
            await bench.ended(await bench.submit("known", priority=9))
            asked.clear()
            await bench.ended(await bench.submit("known", priority=9))
        assert {request.types for request in asked} == {("known",)} and len(asked) < 20
        assert (await client.stats())["pending"] == len(many)


async def test_a_drain_leaves_and_reports_them(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.handle(lambda: 1, name="known")
    ids = [await bench.submit(type) for type in ("typo", "typo", "known")]
    with caplog.at_level(logging.INFO, "qo.worker"):
        await Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05)).run()
    statuses = [(await stored(bench, task_id)).status for task_id in ids]
    assert statuses == [Status.PENDING, Status.PENDING, Status.COMPLETED]
    assert "drained; tasks left in the queue: 2 typo (no running worker handles this type)" in caplog.text


async def test_dequeue_beside_a_worker_gets_what_the_worker_does_not_know(bench: Bench) -> None:
    bench.handle(lambda: 1, name="known")
    async with bench.working():
        mine = await bench.submit("mine")
        await bench.ended(await bench.submit("known"))
        (task,) = await bench.client.dequeue("mine")
        assert (task.id, task.attempt) == (mine, 1)
        await bench.client.ack(task)


# --- failing them is an option


async def test_a_worker_may_fail_what_no_worker_ever_knew_and_leaves_what_is_known_elsewhere(bench: Bench) -> None:
    bench.handle(lambda: 1, name="known")
    bench.handle(lambda: 1, name="elsewhere")
    async with bench.working(types=("elsewhere",)):  # registers the type, then leaves
        await bench.ended(await bench.submit("elsewhere"))
    waiting, later = await bench.submit("elsewhere"), await bench.submit("typo", delay=3600)
    lost = await bench.submit("typo")
    async with bench.working(types=("known",), fail_unknown_types=0.0) as worker:
        task = await bench.ended(lost)
    assert (task.status, task.attempt, task.failures) == (Status.FAILED, 0, 0)
    assert task.error == "unknown type 'typo': no worker has a handler for it"
    assert worker.failed == 1
    assert {(await stored(bench, task_id)).status for task_id in (waiting, later)} == {Status.PENDING}


async def test_each_task_waits_as_long_as_the_option_says(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock, fail_after=30.0)
    first = await timed.submit("typo")
    clock.advance(29)
    assert await checked.check() == 0
    await timed.client.submit_many([timed.client.new_task("typo", b"{}") for _ in range(1200)])
    clock.advance(1)
    assert await checked.check() == 1
    assert (await stored(timed, first)).status is Status.FAILED
    clock.advance(29)
    assert await checked.check() == 1200


async def test_only_a_type_that_two_checks_have_found_is_failed(timed: Bench, clock: ManualClock) -> None:
    """Workers that start together register one by one."""
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock, fail_after=0.0)
    early, lost = await timed.submit("early"), await timed.submit("typo")
    assert await checked.check() == 0
    await make_types_known(timed.client.engine, ["early"])
    clock.advance(1)
    assert await checked.check() == 1
    assert (await stored(timed, lost)).status is Status.FAILED
    assert (await stored(timed, early)).status is Status.PENDING


async def test_two_checks_at_once_count_as_one(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock, fail_after=0.0)
    await timed.submit("typo")
    assert [await checked.check(), await checked.check()] == [0, 0]


async def has_consumers(bench: Bench, number: int) -> bool:
    return len((await read_consumers(bench.client.engine)).until) == number


async def is_known(bench: Bench, type: str) -> bool:
    return type in (await read(bench.client.engine, KNOWN_TYPES, KnownTypes)).types


@pytest.mark.parametrize("takes", [{"type": "mine"}, {}, {"queue": "default"}], ids=["a type", "all", "a queue"])
async def test_what_dequeue_takes_is_never_failed(timed: Bench, clock: ManualClock, takes: dict[str, Any]) -> None:
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock, fail_after=0.0)
    assert await timed.client.dequeue(**takes) == []
    await until(has_consumers, timed, 1)
    mine = await timed.submit("mine")
    for _ in range(3):
        assert await checked.check() == 0
        clock.advance(1)
    (task,) = await timed.client.dequeue(**takes)
    assert task.id == mine
    await timed.client.release(task)
    await until(is_known, timed, "mine")
    clock.advance(3600)  # the client has gone, and what it has ever taken is known
    for _ in range(3):
        assert await checked.check() == 0
        clock.advance(1)


async def test_a_client_that_dequeues_one_queue_does_not_protect_another(timed: Bench, clock: ManualClock) -> None:
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock, fail_after=0.0)
    assert await timed.client.dequeue(queue="other") == []
    await until(has_consumers, timed, 1)
    lost, taken = await timed.submit("mine"), await timed.submit("mine", queue="other")
    await checked.check()
    clock.advance(1)
    assert await checked.check() == 1
    assert (await stored(timed, lost)).status is Status.FAILED
    assert (await stored(timed, taken)).status is Status.PENDING


async def test_what_dequeue_takes_is_not_warned_about(
    timed: Bench, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.handle(lambda: 1, name="known")
    checked = unknown_types(timed, clock)
    await timed.submit("mine")
    await timed.client.dequeue("mine", queue="other")
    await timed.client.dequeue("other")
    (task,) = await timed.client.dequeue("mine")
    await timed.client.release(task)
    await until(has_consumers, timed, 3)
    for _ in range(3):
        await checked.check()
        clock.advance(5)
    assert logged(caplog) == []


async def test_it_is_left_alone_while_it_is_paused(bench: Bench) -> None:
    bench.handle(lambda: 1, name="known")
    await bench.client.controls.pause(types=["typo"])
    paused, lost = await bench.submit("typo"), await bench.submit("mistake")
    async with bench.working(fail_unknown_types=0.0):
        assert (await bench.ended(lost)).status is Status.FAILED
        left = await stored(bench, paused)
        assert (left.status, left.attempt) == (Status.PENDING, 0)
        await bench.client.controls.resume(types=["typo"])
        assert (await bench.ended(paused)).status is Status.FAILED


async def test_what_is_known_cannot_be_read_so_nothing_is_failed(bench: Bench, clock: ManualClock) -> None:
    bench.handle(lambda: 1, name="known")
    await bench.submit("typo")
    await bench.client.engine.write_note(KNOWN_TYPES, b"{", expected=ANY)
    checked = unknown_types(bench, clock, fail_after=0.0)
    for _ in range(3):
        assert await checked.check() == 0
        clock.advance(1)


async def test_a_drain_may_fail_them(bench: Bench) -> None:
    bench.handle(lambda: 1, name="known")
    lost = await bench.submit("typo")
    worker = Worker(bench.client, bench.registry, WorkerSettings(drain=True, poll=0.05, fail_unknown_types=0.0))
    await asyncio.wait_for(worker.run(), TIMEOUT)
    assert (await stored(bench, lost)).status is Status.FAILED
