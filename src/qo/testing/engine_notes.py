"""The contract of notes, and of what is kept in notes: the audit trail, the statistics and schedules."""

import asyncio
import json
import random

import msgspec
import pytest

from qo import notes
from qo.audit import AuditTrail, compact_audit, new_record, read_audit
from qo.audit.archive import PREFIX, UNVERIFIED, VERIFIED
from qo.client import Client
from qo.clock import instant
from qo.damage import QUARANTINE
from qo.engine import Engine
from qo.errors import Conflict, DamagedNote
from qo.model import ADMIN_NOTES, ANY, NEW, Filter, Status, complete
from qo.monitor import Monitor
from qo.monitor.scheduler import Scheduler
from qo.schedules.fire_times import fires_between
from qo.schedules.schedule import task_id_of
from qo.schedules.schedule_notes import SCHEDULES, read_schedules
from qo.stats import add_up, compact_stats
from qo.stats.archive import HOUR
from qo.store_time import StoreTime
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_one, new, stored

_SCHEDULERS = 50
_START = instant("2026-10-24T22:10:00Z")  # in Berlin, clocks are set back at 01:00 UTC
_STEPS = (3000.0, 7200.0, 6600.0)  # seconds; together until 02:50 UTC


class NotesContract:
    async def damage_note(self, engine: Engine, name: str) -> None:
        """Damage a stored note. An engine that stores notes in its own documents overrides this and damages one."""
        await engine.write_note(name, b'{"half": ', expected=ANY)

    async def test_notes_are_written_by_compare_and_set(self, engine: Engine) -> None:
        assert await engine.read_note("switch") is None
        first = await engine.write_note("switch", b"\x00on", expected=NEW)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"off", expected=NEW)
        second = await engine.write_note("switch", b"off", expected=first)
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"stale", expected=first)
        assert await engine.read_note("switch") == ("switch", b"off", second)
        third = await engine.write_note("switch", b"off", expected=ANY)
        assert len({first, second, third}) == 3
        await engine.drop_note("switch")
        await engine.drop_note("switch")
        assert await engine.read_note("switch") is None
        with pytest.raises(Conflict):
            await engine.write_note("switch", b"x", expected=third)
        assert await engine.write_note("switch", b"x", expected=NEW) not in {first, second, third}

    async def test_notes_are_listed_by_prefix(self, engine: Engine) -> None:
        for name in ("workers/b", "workers/a:1", "workers_other", "control", "rooms/a:1"):
            await engine.write_note(name, name.encode(), expected=ANY)
        assert [note.name for note in await engine.notes("workers/")] == ["workers/a:1", "workers/b"]
        assert [note.name for note in await engine.notes("rooms/a:")] == ["rooms/a:1"]
        assert [note.data for note in await engine.notes("control")] == [b"control"]

    async def test_notes_of_administrators_are_notes_like_any_other(self, engine: Engine) -> None:
        """Even if the store keeps them in another place."""
        for name in ("admin/b/1", "admin/a", "admired", "control"):
            await engine.write_note(name, name.encode(), expected=NEW)
        with pytest.raises(Conflict):
            await engine.write_note("admin/a", b"again", expected=NEW)
        assert [note.name for note in await engine.notes("admin/")] == ["admin/a", "admin/b/1"]
        assert [note.name for note in await engine.notes("admin/b")] == ["admin/b/1"]
        assert [note.name for note in await engine.notes("adm")] == ["admin/a", "admin/b/1", "admired"]
        found = await engine.read_note("admin/a")
        assert found is not None and found.data == b"admin/a"
        assert await engine.write_note("admin/a", b"new", expected=found.version) != found.version
        await engine.drop_note("admin/a")
        assert await engine.read_note("admin/a") is None
        assert [note.name for note in await engine.notes("admin/")] == ["admin/b/1"]

    async def test_exactly_one_of_several_concurrent_writers_of_a_note_wins(self, engine: Engine) -> None:
        async def write(n: int) -> bool:
            try:
                await engine.write_note("leader", b"%d" % n, expected=NEW)
            except Conflict:
                return False
            return True

        assert sum(await asyncio.gather(*(write(n) for n in range(8)))) == 1

    async def test_a_damaged_note_affects_nothing_else(self, engine: Engine, clock: ManualClock) -> None:
        for name in ("a", "b"):
            note = notes.WorkerNote(worker_id=name, started_at=0, last_heartbeat=clock.now, capacity=1)
            await engine.write_note(notes.WORKERS + name, msgspec.json.encode(note), expected=ANY)
        for name in (notes.LEADER, notes.CONTROL, notes.KNOWN_TYPES, notes.WORKERS + "b"):
            await engine.write_note(name, b"{}", expected=ANY)
            await self.damage_note(engine, name)
        await engine.add([new(type="there")])
        await claim_one(engine, lease=30.0)
        clock.advance(50)

        client = Client(engine, clock=clock)
        assert [worker.worker_id for worker in await client.workers()] == ["a"]
        check = await Monitor(client, id="m", clock=clock).check()
        assert (check.led, check.expired) == (True, 1)
        assert (await stored(engine)).status is Status.PENDING
        assert [worker.worker_id for worker in await client.workers()] == ["a"]
        assert await client.controls.in_force() == notes.Controls()
        with pytest.raises(DamagedNote, match="control"):
            await client.controls.read()
        assert (await client.controls.pause()).paused
        assert (await client.controls.read()).paused
        known = await notes.make_types_known(engine, ["mine"])
        assert known.types == {"mine", "there"}  # without `there`, its tasks could be failed as unknown
        aside = await engine.notes(QUARANTINE)
        assert [note.name for note in aside] == [
            "quarantine/control",
            "quarantine/monitor",
            "quarantine/types",
            "quarantine/workers/b",
        ]
        assert all(note.data for note in aside)


_DAY = 86_400.0


class AuditContract(NotesContract):
    """Each action is kept once, even if several processes write and merge concurrently."""

    def audited(self, engine: Engine) -> Engine:
        """The engine that stores the trail. For an engine over HTTP, this is the server's engine."""
        return engine

    async def test_the_trail_loses_no_action_and_shows_each_once(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(_DAY - clock.now % _DAY)
        below = self.audited(engine)
        # With these random numbers, a trail never compacts on its own.
        trails = [AuditTrail(below, clock=clock, random=lambda: 1.0) for _ in range(2)]

        def recording(first: int) -> list[asyncio.Future[None]]:
            records = [
                new_record(at=clock.now + n, actor="token", who="ops", action="replay", target=f"{n}")
                for n in range(first, first + 6)
            ]
            return [asyncio.ensure_future(trails[n % 2].record(record)) for n, record in enumerate(records)]

        async def seen() -> list[str]:
            page = await read_audit(engine, now=clock.now + 60, limit=100)
            return [record.target for record in page.records]

        await asyncio.gather(*recording(0))
        assert await seen() == ["5", "4", "3", "2", "1", "0"]
        await asyncio.gather(compact_audit(below, clock.now), compact_audit(below, clock.now), *recording(6))
        assert await seen() == [str(n) for n in reversed(range(12))]
        await compact_audit(below, clock.now)
        assert await seen() == [str(n) for n in reversed(range(12))]
        assert not await below.notes(VERIFIED.inbox)

        clock.advance(_DAY)
        await trails[0].record(new_record(at=clock.now, actor="cli", who="me@here", action="pause"))
        (new,) = await below.notes(VERIFIED.inbox)
        await trails[1].record(new_record(at=clock.now + 1, actor="cli", who="me@here", action="resume"))
        await self.damage_note(below, new.name)
        today = (await below.notes(PREFIX))[0].name
        page = await read_audit(engine, now=clock.now + 60, limit=1)
        assert ([record.action for record in page.records], page.has_more) == (["resume"], True)
        await self.damage_note(below, today)
        await compact_audit(below, clock.now)
        page = await read_audit(engine, now=clock.now + 60, limit=100)
        assert [record.action for record in page.records] == ["resume"]
        await trails[0].record(new_record(at=clock.now - _DAY, actor="cli", who="me@here", action="late"))
        await compact_audit(below, clock.now)
        page = await read_audit(engine, now=clock.now + 60, limit=100)
        assert [record.action for record in page.records] == ["resume", "late"]
        assert not await below.notes(QUARANTINE)
        aside = [note.name for note in await below.notes(ADMIN_NOTES + QUARANTINE)]
        assert aside == [ADMIN_NOTES + QUARANTINE + name for name in (today, new.name)]

    async def test_a_record_that_cannot_be_read_is_kept_by_every_merge(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        below = self.audited(engine)
        strange = '{"id": "1",  "actor":"robot", "at":1}'  # written by a newer qo with more kinds of actors
        await below.write_note(f"{UNVERIFIED.inbox}1", f'{{"records": [{strange}, 5]}}'.encode(), expected=ANY)
        for n in range(3):
            record = new_record(at=clock.now, actor="page", who="key", action=f"{n}")
            data = json.dumps({"records": [msgspec.to_builtins(record)]}).encode()
            await below.write_note(f"{UNVERIFIED.inbox}2-{n}", data, expected=ANY)
            await compact_audit(below, clock.now)
            page = await read_audit(engine, now=clock.now + 60, limit=10)
            assert (len(page.records), page.unreadable, page.dropped) == (n + 1, 2, 0)
            assert not any(record.verified for record in page.records)
        (day,) = await below.notes(UNVERIFIED.days)
        assert strange.encode() in day.data and not await below.notes(UNVERIFIED.inbox)


class StatsContract:
    """Each settlement is counted once, whichever process made it."""

    async def test_settlements_of_several_processes_are_counted_once(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(HOUR - clock.now % HOUR)
        one, other = (Client(engine, clock=clock) for _ in range(2))
        await one.submit_many([one.new_task("t", b"null", max_retries=0) for _ in range(5)])
        for queue in (one, other):
            for task in await queue.dequeue("t", batch_size=2, lease=60):
                await queue.ack(task)
                await queue.ack(task)  # a repeat
            await queue.recorder.flush()
        (task,) = await other.dequeue("t", lease=60)
        await other.nack(task, "boom")
        await other.recorder.flush()
        for _ in range(3):  # as recorded, merged, and by the hour
            rows = add_up(await one.activity(9 * HOUR))
            assert sum(row.completed for row in rows.values()) == 4
            assert [row.failed for row in rows.values()] == [{"error": 1}]
            clock.advance(1.5 * HOUR)
            await compact_stats(engine, clock.now)


def scheduler(client: Client, clock: ManualClock) -> Scheduler:
    return Scheduler(client, clock=StoreTime(client.engine, clock, clock), elapsed=clock)


class ScheduleContract:
    async def damage_note(self, engine: Engine, name: str) -> None:
        raise NotImplementedError

    async def test_fifty_schedulers_that_are_killed_submit_one_task_for_each_fire_time(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.now = _START
        client, dice = Client(engine, clock=clock), random.Random(15)  # noqa: S311 - repeatable random numbers
        await client.schedules.add("fixed", task="report", cron="30 2 * * *", timezone="Europe/Berlin", catch_up="all")
        await client.schedules.add(
            "rhythm", task="report", cron="*/30 * * * *", timezone="Europe/Berlin", catch_up="all"
        )
        await client.schedules.add("interval", task="report", every=1200, jitter=60, catch_up="all")
        schedulers = [scheduler(client, clock) for _ in range(_SCHEDULERS)]
        for step in _STEPS:
            clock.advance(step)
            checks = [asyncio.create_task(each.check()) for each in schedulers]
            for place in dice.sample(range(_SCHEDULERS), 20):
                for _ in range(dice.randrange(4)):
                    await asyncio.sleep(0)
                checks[place].cancel()
                schedulers[place] = scheduler(client, clock)
            await asyncio.gather(*checks, return_exceptions=True)
        for _ in range(3):  # the last ones find what was decided and not submitted
            clock.advance(5.0)
            await scheduler(client, clock).check()
        stored = await read_schedules(engine)
        expected = {
            task_id_of(note.schedule.name, at)
            for note in stored
            for at in fires_between(note.schedule, _START, clock())
        }
        assert len(stored) == 3 and len(expected) == 24
        assert sorted(task.id for task in await engine.find(Filter(), limit=1000)) == sorted(expected)
        assert [note.pending for note in stored] == [(), (), ()]

    async def test_the_task_of_an_old_fire_time_is_not_submitted_again_after_its_deletion(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        client = Client(engine, clock=clock)
        await client.schedules.add("sync", task="sync", every=60)
        late = scheduler(client, clock)
        await late.check()  # it knows the schedule as it is before the fire time
        clock.advance(61.0)
        await scheduler(client, clock).check()
        task = await claim_one(engine)
        assert await engine.apply([complete(task, b"1")]) == [True]
        assert await engine.delete([task.id]) == [True]
        await late.check()
        await scheduler(client, clock).check()
        assert await engine.find(Filter(), limit=10) == []

    async def test_schedules_are_paused_resumed_run_and_removed(self, engine: Engine, clock: ManualClock) -> None:
        client = Client(engine, clock=clock)
        await client.schedules.add("sync", task="sync", kwargs={"customer": "acme"}, every=60)
        assert (await client.schedules.pause("sync")).status == "paused"
        clock.advance(600.0)
        await scheduler(client, clock).check()
        assert (await client.schedules.resume("sync")).status == "active"
        await scheduler(client, clock).check()
        assert await engine.find(Filter(), limit=10) == []  # the fires of the pause are not caught up
        by_hand = await client.schedules.run("sync")
        info = await client.schedules.get("sync")
        assert [(fire.task_id, fire.by_hand, fire.task_status) for fire in info.recent] == [
            (by_hand, True, Status.PENDING)
        ]
        await client.schedules.remove("sync")
        assert await client.schedules.list() == []
        assert [task.payload for task in await engine.find(Filter(), limit=10)] == [b'{"customer":"acme"}']

    async def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        client = Client(engine, clock=clock)
        for name in ("bad", "good"):
            await client.schedules.add(name, task=name, every=60)
        await self.damage_note(engine, f"{SCHEDULES}bad")
        clock.advance(61.0)
        await scheduler(client, clock).check()
        assert [task.type for task in await engine.find(Filter(), limit=10)] == ["good"]
        assert [info.name for info in await client.schedules.list()] == ["good"]
        await client.schedules.remove("bad")
        assert await engine.read_note(f"{SCHEDULES}bad") is None
