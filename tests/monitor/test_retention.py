"""Finished tasks leave: by age, by number where they slow every write down, and dead letters in their own time."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import qo
from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.client import Client, Settings
from qo.engine import Engine
from qo.engines.large_values import LargeValuesEngine
from qo.engines.large_values.blobs import DATA
from qo.engines.memory import MemoryEngine
from qo.metrics import Meters
from qo.model import WINDOW, NewTask, Status, complete, fail
from qo.monitor import Checked, Monitor, MonitorSettings
from qo.sweep import FAILED_RETENTION, MAX_FINISHED
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.layouts import LAYOUTS

DAY = 86_400.0
REWRITTEN = ["one", "sqlite"]  # layouts whose every write sends the whole queue


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", *LAYOUTS])
async def client(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Client]:
    async with Client(engine_of(request.param, clock), clock=clock) as client:
        yield client


def engine_of(name: str, clock: ManualClock) -> Engine:
    bucket = MemoryBucket(clock)
    if name == "memory":
        return MemoryEngine(clock)
    return LargeValuesEngine(LAYOUTS[name](bucket, clock), bucket, clock=clock)


def monitor(client: Client, clock: ManualClock, **settings: Any) -> Monitor:
    return Monitor(client, MonitorSettings(**settings), id="m1", clock=clock)


async def check(client: Client, clock: ManualClock, **settings: Any) -> tuple[int, int]:
    checked: Checked = await monitor(client, clock, **settings).check_once()
    return checked.archived, checked.deleted


async def finish(client: Client, *tasks: NewTask, failing: bool = False) -> None:
    await client.engine.add(tasks)
    held = await claim(client.engine, limit=len(tasks))
    assert all(await client.engine.apply([fail(task, "e") if failing else complete(task) for task in held]))


async def test_tasks_are_archived_then_deleted_and_the_unfinished_are_never_touched(
    client: Client, clock: ManualClock
) -> None:
    await finish(client, new("done"))
    await finish(client, new("failed"), failing=True)
    await client.engine.add([new("waiting")])
    clock.advance(7199)
    assert await check(client, clock, retention=7200.0) == (0, 0)
    clock.advance(1)
    assert await check(client, clock, retention=7200.0) == (2, 0)
    assert (await stored(client.engine, "done")).status is Status.ARCHIVED
    clock.advance(7200)
    assert await check(client, clock, retention=7200.0) == (0, 2)
    assert [task.id for task in await client.list()] == [task_id("waiting")]


async def test_a_retention_below_an_hour_holds(client: Client, clock: ManualClock) -> None:
    await finish(client, new())
    watch = monitor(client, clock, retention=60.0)
    seen = []
    for _ in range(5):
        checked = await watch.check()
        seen.append((checked.archived, checked.deleted))
        clock.advance(30)
    assert seen == [(0, 0), (0, 0), (1, 0), (0, 0), (0, 1)]  # although sweeps are five minutes apart
    assert await client.get(task_id(0)) is None


async def test_dead_letters_leave_in_their_own_time(client: Client, clock: ManualClock) -> None:
    await finish(client, new("done"))
    await finish(client, new("failed"), failing=True)
    settings = {"retention": 60.0, "failed_retention": 7200.0}
    clock.advance(120)
    assert await check(client, clock, **settings) == (1, 1)
    clock.advance(7079)
    assert await check(client, clock, **settings) == (0, 0)
    clock.advance(1)
    assert await check(client, clock, **settings) == (0, 1)
    assert await client.list() == []


async def test_dead_letters_may_leave_alone_or_stay_for_ever(client: Client, clock: ManualClock) -> None:
    await finish(client, new("done"))
    await finish(client, new("failed"), failing=True)
    clock.advance(7200)
    assert await check(client, clock, retention=60.0, failed_retention=0.0) == (1, 1)
    await finish(client, new("done"))
    clock.advance(7200)
    assert await check(client, clock, retention=0.0, failed_retention=7200.0) == (0, 1)
    assert [task.id for task in await client.list()] == [task_id("done")]


async def test_a_key_outlives_the_retention_until_its_window_is_over(client: Client, clock: ManualClock) -> None:
    first = await client.enqueue("t", idempotency_key="k")
    await client.engine.apply([complete(await claim_one(client.engine))])
    clock.advance(7200)
    await check(client, clock, retention=60.0)
    again = await client.enqueue("t", idempotency_key="k")
    assert (again.id, again.new) == (first.id, False)
    clock.advance(WINDOW)
    assert await check(client, clock, retention=60.0) == (0, 1)


@pytest.mark.parametrize("name", ["memory", *LAYOUTS])
async def test_a_key_with_a_longer_window_outlives_the_retention_too(
    name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.client.leases._RETENTION_INTERVAL", 0.0)  # each dequeue applies the retention
    async with Client(engine_of(name, clock), Settings(window=7 * DAY, recovery_interval=0.0), clock=clock) as client:
        first = await client.enqueue("t", idempotency_key="k")
        await client.ack((await client.dequeue())[0])
        clock.advance(5 * DAY)
        await check(client, clock, retention=60.0)
        await client.dequeue()
        again = await client.enqueue("t", idempotency_key="k")
        assert (again.id, again.new) == (first.id, False)
        clock.advance(3 * DAY)
        assert await check(client, clock, retention=60.0) == (0, 1)


@pytest.mark.parametrize("name", REWRITTEN)
async def test_a_monitor_beside_a_program_keeps_what_the_program_keeps(name: str, clock: ManualClock) -> None:
    async with Client(engine_of(name, clock), Settings(retention=0.0), clock=clock) as client:
        await finish(client, new())
        clock.advance(400 * DAY)
        assert await check(client, clock) == (0, 0)
        assert await check(client, clock, retention=60.0) == (1, 1)


class CountingBucket(MemoryBucket):
    reads = 0  # of large values

    async def get(self, key: str) -> Blob | None:
        self.reads += key.startswith(DATA)
        return await super().get(key)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("is_measured", [False, True])
async def test_large_values_are_not_read_to_be_deleted(name: str, is_measured: bool, clock: ManualClock) -> None:
    bucket = CountingBucket(clock)
    async with Client(LargeValuesEngine(LAYOUTS[name](bucket, clock), bucket, clock=clock), clock=clock) as client:
        await finish(client, new(1, payload=b"x" * 300_000), new(2, payload=b"y" * 300_000))
        used = Meters().measured(client) if is_measured else client
        bucket.reads = 0
        clock.advance(DAY + 1)
        assert await check(used, clock, retention=DAY) == (2, 0)
        clock.advance(DAY)
        assert await check(used, clock, retention=DAY, sweep_interval=1e9) == (0, 2)
        assert bucket.reads == 0


@pytest.mark.parametrize("name", ["memory", "tasks"])
async def test_where_finished_tasks_cost_nothing_they_stay_by_default(name: str, clock: ManualClock) -> None:
    async with Client(engine_of(name, clock), clock=clock) as client:
        await finish(client, new())
        clock.advance(400 * DAY)
        assert await check(client, clock) == (0, 0)


@pytest.mark.parametrize("name", REWRITTEN)
async def test_where_every_write_sends_them_they_leave_by_default(name: str, clock: ManualClock) -> None:
    async with Client(engine_of(name, clock), clock=clock) as plain:
        client = Meters().measured(plain)  # as a worker that shows metrics has it
        await finish(client, new("done"))
        await finish(client, new("failed"), failing=True)
        clock.advance(DAY - 1)
        assert await check(client, clock) == (0, 0)
        assert await check(client, clock, retention=0.0) == (0, 0)
        clock.advance(1)
        assert await check(client, clock) == (1, 0)
        clock.advance(DAY)
        assert await check(client, clock) == (0, 1)
        assert [task.id for task in await client.list()] == [task_id("failed")]
        clock.advance(FAILED_RETENTION)
        assert await check(client, clock) == (0, 1)


@pytest.mark.parametrize("name", REWRITTEN)
async def test_where_every_write_sends_them_only_the_newest_stay(name: str, clock: ManualClock) -> None:
    async with Client(engine_of(name, clock), clock=clock) as client:
        await finish(client, *(new(n) for n in range(MAX_FINISHED + 200)))
        await finish(client, new("failed"), failing=True)
        await client.engine.add([new("waiting")])
        clock.advance(299)
        assert await check(client, clock) == (0, 0)  # somebody may still ask for their results
        clock.advance(1)
        assert await check(client, clock, retention=7 * DAY) == (0, 0)
        assert await check(client, clock, sweep_page_size=70) == (0, 200)
        assert (await client.stats())["completed"] == MAX_FINISHED
        assert await client.get(task_id(0)) is None and await client.get(task_id(MAX_FINISHED)) is not None
        assert {(await client.stats())[status] for status in ("failed", "pending")} == {1}


@pytest.mark.parametrize("mode", ["durable", "local"])
async def test_a_store_without_a_monitor_tidies_while_it_dequeues(mode: str, clock: ManualClock) -> None:
    bucket = MemoryBucket(clock)
    for settings, kept in ((Settings(retention=0.0), 3), (None, 1)):
        async with await qo.S3Store.create(bucket, mode=mode, settings=settings, clock=clock) as store:  # type: ignore[arg-type]
            if kept == 3:
                await finish(store, new(0), new(1))
                clock.advance(2 * DAY)
                await finish(store, new(2))
            assert await store.dequeue() == []
            assert (await store.stats())["completed"] + (await store.stats())["archived"] == kept
