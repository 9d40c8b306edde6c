"""What every engine promises about the order in which tasks are claimed."""

from qo.engine import Engine
from qo.model import after_error, replay
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, new, stored, task_id

_YEAR = 365 * 86_400.0


class Order:
    async def test_a_run_at_in_the_past_is_kept_and_does_not_overtake(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("high", priority=0), new("early", priority=9, run_at=clock.now - 2 * _YEAR)])
        task = await stored(engine, "early")
        assert (task.available_at, task.rank) == (clock.now - 2 * _YEAR, clock.now + 9 * 200)
        clock.advance(1)
        await engine.add([new("late", priority=9), new("medium", priority=6)])
        order = [(await claim_one(engine)).id for _ in range(4)]
        assert order == [task_id(name) for name in ("high", "medium", "early", "late")]

    async def test_a_run_at_in_the_past_costs_a_retry_nothing(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(priority=9, run_at=clock.now - 2 * _YEAR, max_retries=0)])
        clock.advance(5)
        assert await engine.apply([after_error(await claim_one(engine), "e", luck=0)]) == [True]
        assert await engine.apply([replay(task_id(0))]) == [True]
        task = await stored(engine)
        assert (task.available_at, task.rank) == (clock.now, clock.now + 9 * 200)
        assert [task.id for task in await claim(engine)] == [task_id(0)]
