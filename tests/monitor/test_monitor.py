"""The monitor: lost tasks come back, silent workers are noticed, old tasks go; any number may watch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from qo import notes
from qo.client import Client
from qo.damage import QUARANTINE
from qo.engines.memory import MemoryEngine
from qo.errors import DamagedNote
from qo.model import ANY, Filter, Status, renew
from qo.monitor import Monitor, MonitorSettings
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, new, stored


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(clock: ManualClock) -> AsyncIterator[Client]:
    async with Client(MemoryEngine(clock), clock=clock) as client:
        yield client


def monitor(client: Client, clock: ManualClock, name: str = "m1", **settings: Any) -> Monitor:
    return Monitor(client, MonitorSettings(**settings), id=name, clock=clock)


async def test_a_lost_task_comes_back_after_lease_grace_and_back_off(client: Client, clock: ManualClock) -> None:
    await client.engine.add([new(max_retries=1)])
    await claim_one(client.engine, lease=30.0)
    watch = monitor(client, clock)
    clock.advance(34)
    assert (await watch.check()).expired == 0
    clock.advance(1)
    assert (await watch.check()).expired == 1
    task = await stored(client.engine)
    assert (task.status, task.failures) == (Status.PENDING, 1)
    assert 0.7 <= task.available_at - clock.now <= 1.3
    assert await claim(client.engine) == []
    clock.advance(2)
    await claim_one(client.engine, lease=30.0)
    clock.advance(35)
    assert (await watch.check()).expired == 1
    task = await stored(client.engine)
    assert (task.status, task.failures) == (Status.FAILED, 2)  # a task that kills its workers ends like any other


async def test_more_lost_tasks_than_a_page_are_all_found(client: Client, clock: ManualClock) -> None:
    await client.engine.add([new(n) for n in range(25)])
    await claim(client.engine, limit=25)
    clock.advance(100)
    assert (await monitor(client, clock, sweep_page_size=10).check()).expired == 25


async def test_one_of_many_monitors_leads_and_another_takes_over(client: Client, clock: ManualClock) -> None:
    first, second = monitor(client, clock, "m1"), monitor(client, clock, "m2")
    assert (await first.check()).led
    assert not (await second.check()).led
    clock.advance(60)
    assert (await first.check()).led
    clock.advance(91)
    assert (await second.check()).led
    assert not (await first.check()).led


async def test_a_leader_from_the_future_is_followed_only_for_its_term(client: Client, clock: ManualClock) -> None:
    """Its clock was a day ahead when it wrote the note, and it is gone."""
    ahead = ManualClock(clock.now + 86_400)
    assert (await monitor(client, ahead, "m0").check()).led
    elapsed = ManualClock()
    waiting = Monitor(client, id="m1", clock=clock, elapsed=elapsed)
    assert not (await waiting.check()).led
    elapsed.advance(78)
    assert not (await waiting.check()).led
    elapsed.advance(2)
    assert (await waiting.check()).led


async def test_a_leader_of_an_older_version_from_the_future_is_followed_for_minutes(
    client: Client, clock: ManualClock
) -> None:
    note = {"holder": "m0", "until": clock.now + 86_400}
    await client.engine.write_note(notes.LEADER, msgspec.json.encode(note), expected=ANY)
    elapsed = ManualClock()
    waiting = Monitor(client, id="m1", clock=clock, elapsed=elapsed)
    assert not (await waiting.check()).led
    elapsed.advance(901)
    assert (await waiting.check()).led


async def test_a_leader_whose_clock_is_set_back_renews_its_term(client: Client, clock: ManualClock) -> None:
    elapsed = ManualClock()
    first = Monitor(client, id="m1", clock=clock, elapsed=elapsed)
    assert (await first.check()).led
    before = await client.engine.read_note(notes.LEADER)
    clock.advance(-86_400)
    elapsed.advance(60)
    assert (await first.check()).led
    assert await client.engine.read_note(notes.LEADER) != before


async def test_a_worker_with_a_heartbeat_from_the_future_is_dead_when_none_follows(
    client: Client, clock: ManualClock
) -> None:
    note = notes.WorkerNote(worker_id="w", started_at=0, last_heartbeat=clock.now + 86_400, capacity=1)
    await client.engine.write_note(notes.WORKERS + "w", msgspec.json.encode(note), expected=ANY)
    elapsed = ManualClock()
    watch = Monitor(client, id="m1", clock=clock, elapsed=elapsed)
    for _ in range(4):
        assert (await watch.check()).dead_workers == 0
    elapsed.advance(91)
    assert (await watch.check()).dead_workers == 1


def set_ahead(clock: ManualClock, elapsed: ManualClock, *, after: float) -> None:
    """Time passes, and the clock of the store's machine is set in between."""
    clock.advance(600 + after)
    elapsed.advance(after)


async def test_no_monitor_takes_tasks_from_living_workers_when_the_clock_is_set_ahead(
    client: Client, clock: ManualClock
) -> None:
    """Neither the one that leads nor the one that takes over because the leader's term looks over."""
    elapsed = ManualClock()
    await client.engine.add([new()])
    held = await claim_one(client.engine, lease=30.0)
    note = notes.WorkerNote(worker_id="w1", started_at=clock.now, last_heartbeat=clock.now, capacity=1)
    await client.engine.write_note(notes.WORKERS + "w1", msgspec.json.encode(note), expected=ANY)
    leader, other = (Monitor(client, id=name, clock=clock, elapsed=elapsed) for name in ("m1", "m2"))
    assert (await leader.check()).led
    assert not (await other.check()).led
    set_ahead(clock, elapsed, after=9)
    for watch, leads in ((other, True), (leader, False), (leader, True)):
        checked = await watch.check_once()
        assert (checked.led, checked.expired, checked.dead_workers) == (leads, 0, 0)
    assert await client.engine.apply([renew(held, 30.0)]) == [True]
    clock.advance(34)
    elapsed.advance(34)
    assert (await other.check_once()).expired == 0
    clock.advance(2)
    elapsed.advance(2)
    assert (await other.check_once()).expired == 1
    clock.advance(60)
    elapsed.advance(60)
    dead = [(await other.check_once()).dead_workers for _ in range(4)]
    assert sum(dead) == 1


async def test_a_lease_from_before_the_clock_was_set_back_and_the_machine_restarted_is_noticed(
    client: Client, clock: ManualClock
) -> None:
    await client.engine.add([new()])
    await claim_one(client.engine, lease=30.0)
    clock.advance(-86_400)
    elapsed = ManualClock()
    watch = Monitor(client, id="m1", clock=clock, elapsed=elapsed)
    assert (await watch.check()).expired == 0
    for seconds, expired in ((34, 0), (1, 1)):
        clock.advance(seconds)
        elapsed.advance(seconds)
        assert (await watch.check()).expired == expired


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"{}", b'{"hello": "world"}', b'{"worker_id": "x", "started', b"\xff\xfe", b"\x00" * 10],
)
async def test_no_foreign_bytes_are_taken_for_a_note(client: Client, clock: ManualClock, data: bytes) -> None:
    for name in (notes.WORKERS + "x", notes.LEADER, notes.CONTROL, notes.KNOWN_TYPES):
        await client.engine.write_note(name, data, expected=ANY)
    assert await client.workers() == []
    assert (await monitor(client, clock).check()).led
    for kind, name in ((notes.Controls, notes.CONTROL), (notes.KnownTypes, notes.KNOWN_TYPES)):
        with pytest.raises(DamagedNote):
            await notes.read(client.engine, name, kind)


async def test_a_worker_note_with_an_impossible_date_is_damaged(client: Client, clock: ManualClock) -> None:
    note = notes.WorkerNote(worker_id="w", started_at=1e300, last_heartbeat=0.0, capacity=1)
    await client.engine.write_note(notes.WORKERS + "w", msgspec.json.encode(note), expected=ANY)
    assert await client.workers() == []
    await monitor(client, clock).check()
    assert [note.name for note in await client.engine.notes(QUARANTINE)] == ["quarantine/workers/w"]


async def test_racing_monitors_expire_each_task_once(client: Client, clock: ManualClock) -> None:
    await client.engine.add([new(n) for n in range(10)])
    await claim(client.engine)
    clock.advance(100)
    checks = await asyncio.gather(*(monitor(client, clock, f"m{n}").check() for n in range(5)))
    assert sum(check.expired for check in checks) == 10
    assert {task.failures for task in await client.list(Filter())} == {1}


async def test_when_a_monitor_stops_another_leads_immediately(client: Client, clock: ManualClock) -> None:
    first = monitor(client, clock, "m1")
    running = asyncio.create_task(first.run())
    async with asyncio.timeout(5):
        while await client.engine.read_note(notes.LEADER) is None:
            await asyncio.sleep(0)
        first.stop()
        await running
    assert (await monitor(client, clock, "m2").check()).led


async def test_silent_workers_are_marked_dead_then_forgotten(client: Client, clock: ManualClock) -> None:
    for name, silent in (("alive", 89), ("dead", 91), ("old", 90_000)):
        note = notes.WorkerNote(worker_id=name, started_at=0, last_heartbeat=clock.now - silent, capacity=1)
        await client.engine.write_note(notes.WORKERS + name, msgspec.json.encode(note), expected=ANY)
    watch = monitor(client, clock)
    assert (await watch.check()).dead_workers == 1
    assert {worker.worker_id: worker.status for worker in await client.workers()} == {"alive": "active", "dead": "dead"}
    assert (await watch.check()).dead_workers == 0


class _Mending(MemoryEngine):
    mended = 0

    async def repair(self) -> int:
        self.mended += 1
        return 3


async def test_the_monitor_repairs_indexes_at_its_interval(clock: ManualClock) -> None:
    engine = _Mending(clock)
    watch = monitor(Client(engine, clock=clock), clock, sweep_interval=300.0)
    assert (await watch.check()).repaired == 3
    clock.advance(299)
    assert (await watch.check()).repaired == 0
    clock.advance(1)
    assert (await watch.check()).repaired == 3
    assert engine.mended == 2
