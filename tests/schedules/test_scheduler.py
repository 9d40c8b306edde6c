"""Schedulers on a store in memory: leaders and followers, deaths at every step, stops, refusals, and many schedules."""

import asyncio
from collections.abc import Sequence

import pytest

from qo.client import Client, Settings
from qo.engine import Engine
from qo.engines import open_engine
from qo.errors import StorageError
from qo.forwarding_engine import ForwardingEngine
from qo.model import Added, Filter, NewTask, Note, Status, Task
from qo.monitor import Monitor, MonitorSettings
from qo.monitor.scheduler import Scheduler
from qo.schedules.decision import MAX_RECENT
from qo.schedules.schedule import task_id_of
from qo.schedules.schedule_notes import SCHEDULES, read_schedule
from qo.store_time import StoreTime
from qo.testing import ManualClock
from tests.conditions import TIMEOUT, forever, until


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_020.0)  # 20 s before a full minute


@pytest.fixture
def engine(clock: ManualClock) -> Engine:
    return open_engine("memory://", clock=clock)


@pytest.fixture
def client(engine: Engine, clock: ManualClock) -> Client:
    return Client(engine, clock=clock)


def scheduler(client: Client, clock: ManualClock, *, leads: bool = True) -> Scheduler:
    return Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=clock, is_leader=lambda: leads)


async def tasks(client: Client) -> list[Task]:
    return await client.engine.find(Filter(), limit=10_000)


async def test_a_scheduler_fires_at_the_fire_time_and_returns_when_to_check_again(
    client: Client, clock: ManualClock
) -> None:
    await client.schedules.add("sync", task="sync", every=60)
    one = scheduler(client, clock)
    assert await one.check() == 1.0
    clock.advance(19.5)
    assert await one.check() == pytest.approx(0.5)
    assert await tasks(client) == []
    clock.advance(0.5)
    await one.check()
    (task,) = await tasks(client)
    assert (task.id, task.run_at) == (task_id_of("sync", clock()), clock())


async def test_a_follower_fires_a_little_later_what_no_leader_has_fired(client: Client, clock: ManualClock) -> None:
    await client.schedules.add("sync", task="sync", every=60)
    follower = scheduler(client, clock, leads=False)
    await follower.check()
    clock.advance(21.0)
    await follower.check()
    assert await tasks(client) == []
    clock.advance(1.5)
    await follower.check()
    assert len(await tasks(client)) == 1


class Breaking(ForwardingEngine):
    """Fails one kind of call, once."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.fails: set[str] = set()
        self.reads = 0

    def _may_fail(self, call: str) -> None:
        if call in self.fails:
            self.fails.discard(call)
            raise StorageError(f"{call} failed")

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        self._may_fail("add")
        added = await super().add(tasks)
        self._may_fail("answer")
        return added

    async def read_note(self, name: str) -> Note | None:
        self.reads += 1
        return await super().read_note(name)


@pytest.mark.parametrize("step", ["add", "answer"])
async def test_what_a_dead_scheduler_has_decided_is_submitted_by_another(
    step: str, engine: Engine, client: Client, clock: ManualClock
) -> None:
    await client.schedules.add("sync", task="sync", every=60)
    clock.advance(21.0)
    breaking = Breaking(engine)
    breaking.fails.add(step)
    with pytest.raises(StorageError):
        await scheduler(Client(breaking, clock=clock), clock).check()
    other = scheduler(client, clock)
    await other.check()
    stored = await read_schedule(engine, "sync")
    assert stored is not None and len(stored.pending) == 1  # the first may still be submitting
    clock.advance(4.0)
    await other.check()
    stored = await read_schedule(engine, "sync")
    assert stored is not None and stored.pending == ()
    assert len(await tasks(client)) == 1


class Stopped(ForwardingEngine):
    """The process is stopped for a day after the note is written."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        super().__init__(engine)
        self._clock = clock

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        version = await super().write_note(name, data, expected=expected)
        self._clock.advance(86_400.0)
        return version


async def test_a_scheduler_that_was_stopped_does_not_submit_what_others_did_long_ago(
    engine: Engine, client: Client, clock: ManualClock
) -> None:
    await client.schedules.add("sync", task="sync", every=60)
    clock.advance(21.0)
    await scheduler(Client(Stopped(engine, clock), clock=clock), clock).check()
    assert await tasks(client) == []  # its own decision is for others by now
    await scheduler(client, clock).check()
    assert len(await tasks(client)) == 1


async def test_a_task_that_the_store_refuses_is_recorded_and_does_not_stop_the_others(
    client: Client, clock: ManualClock
) -> None:
    await client.schedules.add("large", task="report", kwargs={"text": "x" * 1000}, every=60)
    await client.schedules.add("small", task="sync", every=60)
    clock.advance(21.0)
    await scheduler(Client(client.engine, Settings(payload_limit=100), clock=clock), clock).check()
    assert [task.type for task in await tasks(client)] == ["sync"]
    (fire,) = (await client.schedules.get("large")).recent
    assert fire.outcome == "missed" and "the task was refused" in str(fire.reason)


async def test_overlap_asks_for_the_tasks_of_the_schedule(client: Client, clock: ManualClock) -> None:
    await client.schedules.add("skip", task="skip", every=60, overlap="skip")
    await client.schedules.add("cancel", task="cancel", every=60, overlap="cancel")
    one = scheduler(client, clock)
    for _ in range(2):
        clock.advance(60.0)
        await one.check()
    skip, cancel = await client.schedules.get("skip"), await client.schedules.get("cancel")
    assert [fire.outcome for fire in skip.recent] == ["skipped", "fired"]
    assert [fire.task_status for fire in cancel.recent] == [Status.PENDING, Status.CANCELLED]
    await client.cancel(str(skip.recent[1].task_id))
    clock.advance(60.0)
    await one.check()
    assert (await client.schedules.get("skip")).recent[0].outcome == "fired"


async def test_a_schedule_whose_time_zone_is_unknown_here_is_left_to_other_machines(
    client: Client, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("elsewhere", "here"):
        await client.schedules.add(name, task=name, cron="* * * * *", timezone="Europe/Berlin")
    note = await client.engine.read_note(f"{SCHEDULES}elsewhere")
    assert note is not None
    unknown = note.data.replace(b"Europe/Berlin", b"Europe/Bonn")
    await client.engine.write_note(note.name, unknown, expected=note.version)
    clock.advance(60.0)
    await scheduler(client, clock).check()
    assert [task.type for task in await tasks(client)] == ["here"]
    kept = await client.engine.read_note(note.name)
    assert kept is not None and kept.data == unknown
    assert "'Europe/Bonn' is not a time zone" in caplog.text and "update the package tzdata" in caplog.text


async def test_a_list_has_the_results_of_the_last_five_fires(client: Client, clock: ManualClock) -> None:
    await client.schedules.add("sync", task="sync", every=60, overlap="cancel")
    one = scheduler(client, clock)
    for _ in range(6):
        clock.advance(60.0)
        await one.check()
    (listed,) = await client.schedules.list()
    cancelled = [Status.CANCELLED] * 4
    assert [fire.task_status for fire in listed.recent] == [Status.PENDING, *cancelled, None]


async def test_a_long_list_reads_the_last_result_of_each_schedule_and_a_bounded_number_of_others(
    client: Client, clock: ManualClock
) -> None:
    for number in range(300):
        await client.schedules.add(f"s{number}", task="sync", every=60)
    one = scheduler(client, clock)
    for _ in range(3):
        clock.advance(60.0)
        await one.check()
    statuses = [[fire.task_status for fire in info.recent] for info in await client.schedules.list()]
    assert [[each[place] for each in statuses].count(Status.PENDING) for place in range(3)] == [300, 200, 0]


async def test_many_manual_runs_do_not_hide_a_task_that_has_not_finished(client: Client, clock: ManualClock) -> None:
    await client.schedules.add("sync", task="sync", every=60, overlap="skip")
    one = scheduler(client, clock)
    await one.check()
    clock.advance(20.0)
    await one.check()
    for _ in range(MAX_RECENT + 1):
        await client.cancel(await client.schedules.run("sync"))
    clock.advance(60.0)
    await one.check()
    assert [task.id for task in await tasks(client) if task.status is Status.PENDING] == [
        task_id_of("sync", clock() - 60)
    ]


async def test_a_thousand_schedules_fire_together_with_few_reads(engine: Engine, clock: ManualClock) -> None:
    breaking = Breaking(engine)
    client = Client(breaking, clock=clock)
    for number in range(1000):
        await client.schedules.add(f"s{number}", task="sync", every=60)
    one = scheduler(client, clock)
    await one.check()
    breaking.reads = 0
    clock.advance(21.0)
    await one.check()
    assert len(await tasks(client)) == 1000
    assert breaking.reads < 10


async def test_a_store_that_does_not_answer_does_not_keep_a_monitor_from_ending(
    engine: Engine, clock: ManualClock
) -> None:
    class Frozen(ForwardingEngine):
        async def notes(self, prefix: str) -> list[Note]:
            return await forever() if prefix == SCHEDULES else await super().notes(prefix)

    monitor = Monitor(Client(Frozen(engine), clock=clock), MonitorSettings(check_interval=0.01), id="m", clock=clock)
    running = asyncio.create_task(monitor.run())
    await until(lambda: engine.read_note("monitor"))
    monitor.stop()
    await asyncio.wait_for(running, TIMEOUT)


async def test_a_monitor_fires_while_it_runs_and_once_on_request(client: Client, clock: ManualClock) -> None:
    await client.schedules.add("sync", task="sync", every=60)
    clock.advance(21.0)
    await Monitor(client, id="once", clock=clock).check_once()
    assert len(await tasks(client)) == 1
    clock.advance(60.0)
    monitor = Monitor(client, id="m", clock=clock)
    running = asyncio.create_task(monitor.run())
    await until(lambda: _count(client, 2))
    monitor.stop()
    await running


async def _count(client: Client, expected: int) -> bool:
    return len(await tasks(client)) == expected
