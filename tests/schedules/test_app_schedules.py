"""Schedules of an app: the decorator, the API at run time, and what workers register."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import qo
from qo.client import Client
from qo.client.client import connect
from qo.errors import InvalidSetting, InvalidTask, ScheduleNotFound
from qo.model import ANY, Filter
from qo.monitor import Monitor
from qo.notes import WORKERS
from qo.testing import ManualClock
from qo.worker import Worker, WorkerSettings
from qo.worker.registration import DeclaredSchedules
from tests.conditions import until


def declaring() -> qo.App:
    app = qo.App("memory://")

    @app.schedule("0 3 * * *", timezone="Europe/Berlin", catch_up="last", overlap="skip")
    @app.task(queue="reports")
    def nightly() -> None: ...

    @app.schedule(every=timedelta(minutes=5), name="sync-acme", kwargs={"customer": "acme"})
    @app.task
    async def sync(customer: str) -> None: ...

    return app


def test_the_decorator_keeps_the_function_and_records_the_schedule() -> None:
    app = qo.App("memory://")

    @app.schedule(every=60)
    @app.task(queue="reports", priority="high")
    def double(number: int = 2) -> int:
        return 2 * number

    assert double(4) == 8
    (schedule,) = app.registry.schedules.values()
    assert (schedule.name, schedule.every, schedule.task.queue, schedule.task.priority) == ("double", 60, "reports", 0)


@pytest.mark.parametrize("on_duplicate", ["keep", "raise", "replace"])
def test_each_fire_time_of_a_unique_task_is_a_separate_task(on_duplicate: str) -> None:
    app = qo.App("memory://")

    @app.schedule(every=60)
    @app.task(unique=qo.Unique(on_duplicate=on_duplicate))  # type: ignore[arg-type]
    def sync() -> None: ...

    with app.test_mode() as t:
        submitted = sync.enqueue()
        t.advance(60)
        fired = t.fire_schedules()
        t.advance(60)
        fired += t.fire_schedules()
        assert len({submitted.id, *(task.id for task in fired)}) == 3
        assert [task.idempotency_key for task in fired] == [None, None]
        if on_duplicate == "keep":
            assert sync.enqueue().id == submitted.id


def test_a_mistake_in_a_decorator_is_raised_where_it_stands() -> None:
    app = qo.App("memory://")

    @app.task(name="path/like@type")
    def send(to: str = "a") -> None: ...

    with pytest.raises(InvalidTask, match="cron: '99 "):
        app.schedule("99 * * * *", name="s")(send)
    with pytest.raises(InvalidTask, match="every: must be at least 1"):
        app.schedule(every=0, name="s")(send)
    with pytest.raises(InvalidTask, match="name: 'path/like@type' is not a name"):
        app.schedule(every=60)(send)
    with pytest.raises(InvalidTask, match="payload: send"):
        app.schedule(every=60, name="s", kwargs={"nobody": 1})(send)
    with pytest.raises(InvalidSetting, match=r"@app.schedule must be above @app.task"):
        app.schedule(every=60)(lambda: None)
    app.schedule(every=60, name="s")(send)
    with pytest.raises(InvalidSetting, match="two schedules are called 's'"):
        app.schedule(every=61, name="s")(send)


async def test_a_client_refuses_options_that_would_have_no_effect() -> None:
    async with qo.connect("memory://") as client:
        task = client.new_task("sync", b"{}")
        mistakes: dict[str, dict[str, Any]] = {
            "kwargs": {"task": task, "kwargs": {"customer": "a"}},
            "options": {"task": task, "options": {"queue": "slow"}},
            "task": {"task": 5},
        }
        for option, wrong in mistakes.items():
            with pytest.raises(InvalidTask, match=f"^{option}: "):
                await client.schedules.add("wrong", every=60, **wrong)


def test_schedules_are_managed_at_run_time_without_an_event_loop(tmp_path: Path) -> None:
    app = qo.App(f"sqlite:///{tmp_path / 'queue.db'}")

    @app.task
    def sync(customer: str) -> None: ...

    info = app.schedules.add("acme", every=timedelta(minutes=5), task=sync, kwargs={"customer": "acme"})
    assert (info.name, info.status, info.timing, len(info.next_fires)) == ("acme", "active", "every 300 s", 5)
    app.schedules.add("by-name", cron="@daily", task="sync", kwargs={"customer": "b"}, options={"queue": "slow"})
    app.schedules.add("urgent", cron="0 * * * *", task=sync.using(priority="high"), kwargs={"customer": "c"})
    assert [(each.name, each.queue) for each in app.schedules.list()] == [
        ("acme", "default"), ("by-name", "slow"), ("urgent", "default"),
    ]  # fmt: skip
    with pytest.raises(InvalidTask, match="nobody"):
        app.schedules.add("wrong", every=60, task="sync", kwargs={"nobody": 1})
    mistakes: dict[str, dict[str, Any]] = {
        "kwargs": {"task": "sync", "kwargs": ["acme"]},
        "task": {"task": 5},
        "options": {"task": sync, "kwargs": {"customer": "a"}, "options": {"queue": "slow"}},
    }
    for option, wrong in mistakes.items():
        with pytest.raises(InvalidTask, match=f"^{option}: "):
            app.schedules.add("wrong", every=60, **wrong)
    assert app.schedules.pause("acme").status == "paused"
    assert app.schedules.get("acme").next_fires == ()
    assert app.schedules.resume("acme").status == "active"
    task = app.get(app.schedules.run("acme"))
    assert task is not None and task.type == "sync"
    app.schedules.remove("acme")
    with pytest.raises(ScheduleNotFound, match="no schedule is called 'acme'"):
        app.schedules.run("acme")
    app.close()


async def test_schedules_are_managed_at_run_time_on_any_event_loop() -> None:
    app = qo.App("memory://")
    until_then = datetime(2040, 1, 1, tzinfo=UTC)
    info = await app.schedules.aadd("a", every=60, task="t", start_at="2030-01-01T00:00:00Z", end_at=until_then)
    assert info.next_fires[0] == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert [each.name for each in await app.schedules.alist()] == ["a"]
    assert (await app.schedules.apause("a")).status == "paused"
    assert (await app.schedules.aresume("a")).status == "active"
    assert await app.aget(await app.schedules.arun("a")) is not None
    assert (await app.schedules.aget("a")).recent[0].by_hand
    await app.schedules.aremove("a")
    assert await app.schedules.alist() == []
    app.close()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with connect(f"sqlite:///{tmp_path / 'queue.db'}") as client:
        yield client


async def declare(client: Client, app: qo.App, clock: ManualClock, worker_id: str = "w") -> None:
    await DeclaredSchedules(client.engine, app.registry, clock, worker_id=worker_id).declare()


async def test_a_worker_registers_the_schedules_of_its_code_and_runs_their_tasks(client: Client) -> None:
    app, ran = qo.App("memory://"), []

    @app.schedule(every=1)
    @app.task
    def tick() -> None:
        ran.append(qo.current_task().run_at)

    worker = Worker(client, app.registry, WorkerSettings(poll=0.05))
    monitor = Monitor(client, id="m")
    work, watch = worker_task(worker), worker_task(monitor)
    await until(lambda: len(ran) >= 2)
    info = await client.schedules.get("tick")
    assert (info.source, info.status) == ("code", "active")
    assert ran[0] == int(ran[0] or 0)  # handlers learn the fire time
    worker.stop()
    monitor.stop()
    await work
    await watch


def worker_task(each: Worker | Monitor) -> "asyncio.Task[None]":
    return asyncio.create_task(each.run())


async def test_a_schedule_that_is_removed_from_the_code_stays_visible_and_fires_no_more(client: Client) -> None:
    clock, before, after = ManualClock(), declaring(), declaring()
    await declare(client, before, clock)
    assert [(each.name, each.status) for each in await client.schedules.list()] == [
        ("nightly", "inactive"), ("sync-acme", "inactive"),
    ]  # fmt: skip
    await declare(client, before, ManualClock(await client.engine.now()))
    del after.registry.schedules["nightly"]
    await declare(client, after, ManualClock(await client.engine.now()))
    assert {each.name: each.status for each in await client.schedules.list()} == {
        "nightly": "inactive",
        "sync-acme": "active",
    }
    with pytest.raises(InvalidTask, match="defined in code; remove it there, or pause it"):
        await client.schedules.remove("sync-acme")
    with pytest.raises(InvalidTask, match="defined in code; change it there"):
        await client.schedules.add("sync-acme", every=60, task="sync")
    await client.schedules.remove("nightly")
    assert [each.name for each in await client.schedules.list()] == ["sync-acme"]


async def test_two_apps_of_one_process_with_a_schedule_of_the_same_name_and_different_stores_are_apart(
    tmp_path: Path,
) -> None:
    for place in ("a", "b"):
        async with connect(f"sqlite:///{tmp_path / place}.db") as client:
            await declare(client, declaring(), ManualClock(await client.engine.now()))
            await client.schedules.run("nightly")
            assert len(await client.engine.find(Filter(), limit=9)) == 1


async def test_a_worker_of_an_older_deployment_leaves_the_newer_definition_while_its_worker_lives(
    client: Client,
) -> None:
    now = await client.engine.now()
    older, newer = declaring(), qo.App("memory://")

    @newer.schedule("0 4 * * *")
    @newer.task
    def nightly() -> None: ...

    clock = ManualClock(now)
    await declare(client, older, clock, "old")
    await declare(client, newer, clock, "new")
    worker = f'{{"worker_id":"new","started_at":{now},"last_heartbeat":{now},"capacity":1}}'
    await client.engine.write_note(f"{WORKERS}new", worker.encode(), expected=ANY)
    await declare(client, older, clock, "old")
    assert (await client.schedules.get("nightly")).schedule.cron == "0 4 * * *"
    await client.engine.drop_note(f"{WORKERS}new")  # the newer deployment is taken back
    await declare(client, older, clock, "old")
    assert (await client.schedules.get("nightly")).schedule.cron == "0 3 * * *"


async def test_a_damaged_schedule_of_the_code_is_set_aside_and_registered_again(client: Client) -> None:
    clock = ManualClock(await client.engine.now())
    await declare(client, declaring(), clock)
    await client.engine.write_note("schedules/nightly", b'{"half', expected=ANY)
    await declare(client, declaring(), clock)
    assert (await client.schedules.get("nightly")).status == "active"
    assert await client.engine.read_note("quarantine/schedules/nightly") is not None


async def test_a_service_that_handles_the_type_without_the_schedule_warns_that_it_deactivates_it(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Two services share a store and register one type; only the first has the schedule."""
    now = await client.engine.now()
    scheduling, other = declaring(), declaring()
    del other.registry.schedules["nightly"]
    clock = ManualClock(now)
    one, two = (
        DeclaredSchedules(client.engine, app.registry, clock, worker_id=name)
        for app, name in ((scheduling, "one"), (other, "two"))
    )
    for worker in ("one", "two"):
        note = f'{{"worker_id":"{worker}","started_at":{now},"last_heartbeat":{now},"capacity":1}}'
        await client.engine.write_note(f"{WORKERS}{worker}", note.encode(), expected=ANY)
    await one.declare()
    assert caplog.messages == []
    await two.declare()
    (warning,) = caplog.messages
    assert "schedule nightly is inactive from now on: this worker handles nightly" in warning
    info = await client.schedules.get("nightly")
    assert info.status == "inactive"
    assert info.inactive_because == "worker two handles nightly, and its code does not have this schedule"
    await two.declare()
    await one.declare()
    await one.declare()
    assert caplog.messages[1:] == [
        "schedule nightly of this code is inactive: worker two handles nightly, and its code does not have the schedule"
    ]
    assert (await client.schedules.get("sync-acme")).inactive_because is None
