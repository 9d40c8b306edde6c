"""The contract for damaged tasks: a stored task that cannot be read affects no other task."""

from typing import Any

import pytest

from qo.client import Client
from qo.damage import note_name
from qo.engine import Engine
from qo.errors import DamagedTask
from qo.model import Filter, Status, Task, complete, cursor, fail
from qo.monitor import Monitor, MonitorSettings
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, task_id

BAD = 2
HEALTHY = [task_id(n) for n in range(5) if n != BAD]
MANY = 22  # damaged tasks in a row: a whole page, or a whole claim


class DamageContract:
    async def damage(self, engine: Engine, task_id: str) -> None:
        """Overwrite one task in the store, without the engine, with bytes that are not a task."""
        pytest.fail(f"{type(self).__name__} must define `damage`, which overwrites {task_id} in the store of {engine}")

    async def test_a_damaged_task_does_not_prevent_claims_of_others(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(n) for n in range(5)])
        await self.damage(engine, task_id(BAD))
        taken = await _claim_all(engine, limit=1)
        assert sorted(task.id for task in taken) == HEALTHY
        assert await claim(engine) == []
        with pytest.raises(DamagedTask, match=task_id(BAD)):
            await Client(engine, clock=clock).get(task_id(BAD))
        assert await engine.apply([complete(task) for task in taken]) == [True] * 4

    async def test_a_damaged_task_that_becomes_due_does_not_delay_others(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(n, delay=10.0) for n in range(5)])
        await self.damage(engine, task_id(BAD))
        clock.advance(11)
        assert sorted(task.id for task in await _claim_all(engine, limit=10)) == HEALTHY

    async def test_a_damaged_task_is_omitted_and_reported(self, engine: Engine, clock: ManualClock) -> None:
        for n in range(5):
            await engine.add([new(n)])
            clock.advance(1)
        await self.damage(engine, task_id(BAD))
        for limit in (1, 2, 10):
            assert sorted(task.id for task in await _find_all(engine, limit)) == HEALTHY
        first, bad, last = await engine.get([task_id(0), task_id(BAD), task_id(4)])
        assert (first and first.id, bad, last and last.id) == (task_id(0), None, task_id(4))
        note = await engine.read_note(note_name(task_id(BAD)))
        assert note is not None
        assert task_id(BAD).encode() in note.data
        counts = await engine.count()
        assert sum(n for lane, n in counts.items() if lane.status is Status.PENDING) in {4, 5}
        with pytest.raises(DamagedTask, match="restore it from a backup") as caught:
            await Client(engine, clock=clock).get(task_id(BAD))
        assert caught.value.task_id == task_id(BAD)
        await engine.history(task_id(BAD))
        assert len(await engine.history(task_id(0))) == 1

    async def test_a_damaged_task_keeps_its_id_until_it_is_deleted(self, engine: Engine, clock: ManualClock) -> None:
        client = Client(engine, clock=clock)
        await engine.add([new(n) for n in range(5)])
        await self.damage(engine, task_id(BAD))
        added = await engine.add([new(BAD), new(7)])
        assert [one.new for one in added] == [False, True]
        assert sorted(task.id for task in await _claim_all(engine, limit=10)) == [*HEALTHY, task_id(7)]
        with pytest.raises(DamagedTask):
            await client.get(task_id(BAD))
        assert await engine.delete([task_id(0), task_id(BAD), task_id(9)]) == [False, True, False]
        assert await client.get(task_id(BAD)) is None
        assert await engine.read_note(note_name(task_id(BAD))) is None
        assert await engine.add([new(BAD)]) == [(task_id(BAD), True)]
        assert [task.id for task in await _claim_all(engine, limit=10)] == [task_id(BAD)]
        assert await engine.delete([task_id(BAD)]) == [False]

    async def test_a_key_whose_last_task_was_damaged_and_deleted_creates_the_next(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "k", "window": 10.0}
        await engine.add([new(**keyed)])
        await engine.apply([complete(await claim_one(engine))])
        clock.advance(10)
        assert await engine.add([new(next_id=task_id(1), **keyed)]) == [(task_id(1), True)]
        await self.damage(engine, task_id(1))
        assert await engine.add([new(next_id=task_id(2), **keyed)]) == [(task_id(1), False)]
        await Client(engine, clock=clock).delete(task_id(1))
        clock.advance(10)
        assert await engine.add([new(next_id=task_id(3), **keyed)]) == [(task_id(3), True)]
        assert [task.id for task in await _claim_all(engine, limit=10)] == [task_id(3)]

    async def test_a_damaged_task_that_was_never_read_is_deleted_by_its_id(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(n) for n in range(5)])
        await self.damage(engine, task_id(BAD))
        await Client(engine, clock=clock).delete(task_id(BAD))
        assert await Client(engine, clock=clock).get(task_id(BAD)) is None
        assert sorted(task.id for task in await _claim_all(engine, limit=10)) == HEALTHY

    async def test_a_damaged_task_does_not_prevent_the_recovery_of_others(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(n) for n in range(5)])
        assert len(await _claim_all(engine, limit=10, lease=30.0)) == 5
        await self.damage(engine, task_id(BAD))
        clock.advance(60)
        settings = MonitorSettings(sweep_page_size=1)
        checked = await Monitor(Client(engine, clock=clock), settings, id="m", clock=clock).check()
        assert checked.expired == 4
        clock.advance(60)
        assert sorted(task.id for task in await _claim_all(engine, limit=10)) == HEALTHY

    async def test_a_damaged_task_does_not_prevent_settling_and_archiving_others(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(n) for n in range(5)])
        taken = await _claim_all(engine, limit=10)
        await self.damage(engine, task_id(BAD))
        answers = await engine.apply([complete(task) if task.id < task_id(4) else fail(task, "e") for task in taken])
        assert [done for task, done in zip(taken, answers, strict=True) if task.id != task_id(BAD)] == [True] * 4
        clock.advance(7200)
        settings = MonitorSettings(retention=5000.0, sweep_page_size=2)
        checked = await Monitor(Client(engine, clock=clock), settings, id="m", clock=clock).check()
        assert checked.archived == 4
        assert sorted(task.id for task in await _find_all(engine, 10, Filter(statuses=(Status.ARCHIVED,)))) == HEALTHY

    async def test_many_damaged_tasks_do_not_affect_others(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(100), *(new(101 + n) for n in range(MANY))])
        await self._damage_many(engine, 101)
        assert [task.id for task in await _find_all(engine, MANY)] == [task_id(100)]
        await engine.add([*(new(200 + n) for n in range(MANY)), new(200 + MANY)])
        await self._damage_many(engine, 200)
        taken = await _claim_all(engine, limit=MANY, lease=10.0)
        assert sorted(task.id for task in taken) == [task_id(100), task_id(200 + MANY)]
        await engine.add([new(300), *(new(301 + n) for n in range(MANY))])
        assert len(await _claim_all(engine, limit=MANY, lease=10.0)) == MANY + 1
        await self._damage_many(engine, 301)
        clock.advance(60)
        settings = MonitorSettings(sweep_page_size=MANY)
        assert (await Monitor(Client(engine, clock=clock), settings, id="m", clock=clock).check()).expired == 3
        clock.advance(60)
        taken = await _claim_all(engine, limit=1)
        assert sorted(task.id for task in taken) == [task_id(100), task_id(200 + MANY), task_id(300)]
        assert await engine.apply([complete(task) for task in taken]) == [True] * 3

    async def test_a_task_added_next_to_many_damaged_ones_is_stored_and_counted(self, engine: Engine) -> None:
        await engine.add([new(n) for n in range(MANY)])
        await self._damage_many(engine, 0)
        added = await engine.add([*(new(n) for n in range(MANY)), new(MANY)])
        assert [one.new for one in added] == [False] * MANY + [True]
        assert [task.id for task in await _claim_all(engine, limit=1)] == [task_id(MANY)]
        counts = await engine.count()
        assert sum(n for lane, n in counts.items() if lane.status is Status.RUNNING) == 1

    async def _damage_many(self, engine: Engine, first: int) -> None:
        for n in range(MANY):
            await self.damage(engine, task_id(first + n))


async def _claim_all(engine: Engine, **fields: float) -> list[Task]:
    taken: list[Task] = []
    while some := await claim(engine, **fields):
        taken += some
    return taken


async def _find_all(engine: Engine, limit: int, where: Filter | None = None) -> list[Task]:
    found, after = list[Task](), ""
    while page := await engine.find(where or Filter(), limit=limit, after=after):
        found += page
        after = cursor(page[-1])
    return found
