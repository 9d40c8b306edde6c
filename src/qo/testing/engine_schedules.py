"""The contract of schedules: any number of schedulers submit one task for each fire time."""

import asyncio
import random

from qo.client import Client
from qo.clock import instant
from qo.engine import Engine
from qo.model import Filter, Status, complete
from qo.monitor.scheduler import Scheduler
from qo.schedules.fire_times import fires_between
from qo.schedules.schedule import task_id_of
from qo.schedules.schedule_notes import SCHEDULES, read_schedules
from qo.store_time import StoreTime
from qo.testing.clock import ManualClock
from qo.testing.samples import claim_one

_SCHEDULERS = 50
_START = instant("2026-10-24T22:10:00Z")  # in Berlin, clocks are set back at 01:00 UTC
_STEPS = (3000.0, 7200.0, 6600.0)  # seconds; together until 02:50 UTC


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
