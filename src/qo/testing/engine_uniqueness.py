"""Contract of unique tasks: keys that are unique until a task starts, and replaced tasks."""

from typing import Any

from qo.engine import Engine
from qo.model import Added, Status, after_error, amend, complete, release
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id


class UniquenessContract:
    async def test_a_key_that_is_unique_until_the_start_is_free_once_the_task_runs(self, engine: Engine) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 0.0, "until_started": True}
        assert await engine.add([new(1, next_id=task_id(11), **keyed)]) == [Added(task_id(1), new=True)]
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]
        first = await claim_one(engine)
        assert await engine.add([new(1, next_id=task_id(13), **keyed)]) == [Added(task_id(13), new=True)]
        assert await engine.add([new(1, next_id=task_id(14), **keyed)]) == [Added(task_id(13), new=False)]
        await engine.apply([complete(first)])
        assert await engine.add([new(1, next_id=task_id(15), **keyed)]) == [Added(task_id(13), new=False)]
        second = await claim_one(engine)
        assert (second.id, second.idempotency_key) == (task_id(13), "unique:k")
        assert await engine.add([new(1, next_id=task_id(16), **keyed)]) == [Added(task_id(16), new=True)]

    async def test_a_task_that_waits_again_keeps_its_key(self, engine: Engine) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 0.0, "until_started": True}
        await engine.add([new(1, next_id=task_id(11), **keyed)])
        await engine.apply([after_error(await claim_one(engine), "boom", random=0.5)])
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]

    async def test_a_window_keeps_the_key_after_the_start(self, engine: Engine, clock: ManualClock) -> None:
        keyed: dict[str, Any] = {"idempotency_key": "unique:k", "window": 10.0, "until_started": True}
        await engine.add([new(1, next_id=task_id(11), **keyed)])
        await claim_one(engine)
        assert await engine.add([new(1, next_id=task_id(12), **keyed)]) == [Added(task_id(1), new=False)]
        clock.advance(10)
        assert await engine.add([new(1, next_id=task_id(13), **keyed)]) == [Added(task_id(13), new=True)]

    async def test_a_waiting_task_gets_the_payload_priority_and_time_of_another(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new(1, payload=b'{"n":1}', delay=60.0), new(2, priority=5)])
        latest = new(1, payload=b'{"n":2}', priority=0, ageing=3.0)
        assert await engine.apply([amend(task_id(1), latest)]) == [True]
        task = await stored(engine, 1)
        assert (task.payload, task.priority, task.available_at) == (b'{"n":2}', 0, clock.now)
        assert (task.id, task.status, task.attempt) == (task_id(1), Status.PENDING, 0)
        assert [each.id for each in await claim(engine)] == [task_id(1), task_id(2)]

    async def test_replaced_tasks_wait_anew(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(1, delay=60.0)])
        clock.advance(59)
        assert await engine.apply([amend(task_id(1), new(1, delay=60.0, payload=b"2"))]) == [True]
        clock.advance(59)
        assert await claim(engine) == []
        clock.advance(1)
        assert [task.payload for task in await claim(engine)] == [b"2"]

    async def test_a_task_that_runs_or_has_ended_is_not_replaced(self, engine: Engine) -> None:
        await engine.add([new(1, payload=b"1")])
        task = await claim_one(engine)
        assert await engine.apply([amend(task.id, new(1, payload=b"2"))]) == [False]
        await engine.apply([complete(task)])
        assert await engine.apply([amend(task.id, new(1, payload=b"2"))]) == [False]
        assert (await stored(engine, 1)).payload == b"1"
        assert await engine.apply([amend(task_id(9), new(9))]) == [False]

    async def test_a_replaced_task_that_is_claimed_has_the_new_payload(self, engine: Engine) -> None:
        await engine.add([new(1, payload=b"1")])
        await engine.apply([release(await claim_one(engine))])
        await engine.apply([amend(task_id(1), new(1, payload=b"2"))])
        assert (await claim_one(engine)).payload == b"2"
