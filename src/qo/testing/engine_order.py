"""The contract of the order in which tasks are claimed."""

import asyncio

from qo.engine import Engine
from qo.model import NewTask, Table, Task, after_error, release, replay
from qo.testing.clock import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id

_YEAR = 365 * 86_400.0


class ClaimOrderContract:
    async def test_a_batch_keeps_its_order_even_if_its_tasks_share_a_run_at(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        numbers = [5, 3, 9, 1, 14, 2, 13, 8]
        at = clock.now + 60
        for shared, fields in enumerate(
            [{"delay": 30.0}, {"run_at": at}, {"run_at": at, "priority": 0}, {"run_at": at - 1e6}, {"ageing": 0.0}]
        ):
            batch = [new(100 * shared + n, queue=f"q{shared}", **fields) for n in numbers]
            assert all(added.new for added in await engine.add(batch))
        strict = [new(900 + n, queue="q5", run_at=at, priority=9, ageing=float("inf")) for n in numbers]
        mixed = [new(1000 + n, queue="q6", run_at=at, type="ab"[n % 2], priority=(0, 6)[n % 2]) for n in numbers]
        await engine.add(strict)
        await engine.add(mixed)
        clock.advance(61)
        for shared in range(5):
            half = await claim(engine, queues=(f"q{shared}",), limit=3)
            rest = [await claim_one(engine, queues=(f"q{shared}",)) for _ in numbers[3:]]
            assert [task.id for task in half + rest] == [task_id(100 * shared + n) for n in numbers]
        assert [task.id for task in await claim(engine, queues=("q5",))] == [task.id for task in strict]
        ids = [task.id for task in mixed if task.priority == 0] + [task.id for task in mixed if task.priority == 6]
        assert [task.id for task in await claim(engine, queues=("q6",))] == ids

    async def test_of_equal_ranks_the_task_submitted_earlier_goes_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        numbers, at = [8, 3, 12, 1, 15, 2, 5], clock.now + 60
        for number in numbers:
            for task in (new(number, run_at=at), new(100 + number, run_at=at, queue="x", type="ab"[number % 2])):
                await engine.add([task])
                clock.advance(1)
        clock.advance(60)
        half = await claim(engine, queues=("q",), limit=3)
        rest = [await claim_one(engine, queues=("q",)) for _ in numbers[3:]]
        assert [task.id for task in half + rest] == [task_id(number) for number in numbers]
        across = await claim(engine, queues=("x",), limit=4)
        across += [await claim_one(engine, queues=("x",)) for _ in numbers[4:]]
        assert [task.id for task in across] == [task_id(100 + number) for number in numbers]
        assert await engine.apply([release(task, 0.0) for task in half + rest + across]) == [True] * 14
        again = await claim(engine, limit=14, lease_id="again")
        assert len({task.rank for task in again}) == 1
        order = [task_id(base + number) for number in numbers for base in (0, 100)]
        assert [task.id for task in again] == order
        repeated = await claim(engine, limit=14, lease_id="again", is_repeat=True)
        assert [task.id for task in repeated] == order

    async def test_a_run_at_in_the_past_is_kept_and_does_not_overtake(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("high", priority=0), new("early", priority=9, run_at=clock.now - 2 * _YEAR)])
        task = await stored(engine, "early")
        assert (task.available_at, task.rank) == (clock.now - 2 * _YEAR, clock.now + 9 * 200)
        clock.advance(1)
        await engine.add([new("late", priority=9), new("medium", priority=6)])
        order = [(await claim_one(engine)).id for _ in range(4)]
        assert order == [task_id(name) for name in ("high", "medium", "early", "late")]

    async def test_a_run_at_in_the_past_does_not_affect_a_replay(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(priority=9, run_at=clock.now - 2 * _YEAR, max_retries=0)])
        clock.advance(5)
        assert await engine.apply([after_error(await claim_one(engine), "e", random=0)]) == [True]
        assert await engine.apply([replay(task_id(0))]) == [True]
        task = await stored(engine)
        assert (task.available_at, task.rank) == (clock.now, clock.now + 9 * 200)
        assert [task.id for task in await claim(engine)] == [task_id(0)]

    async def test_a_claim_returns_tasks_in_rank_order(self, engine: Engine, clock: ManualClock) -> None:
        for n in range(30):  # older tasks have lower numbers, and three priorities take turns
            await engine.add([new(n, type=f"t{n % 5}", priority=(9, 0, 6)[n % 3])])
            clock.advance(1)
        expected = [task_id(n) for first in (1, 2, 0) for n in range(first, 30, 3)]
        claimed = await claim(engine, limit=20, lease_id="mine")
        assert [task.id for task in claimed] == expected[:20]
        again = await claim(engine, limit=20, lease_id="mine", is_repeat=True)
        assert [task.id for task in again] == expected[:20]
        assert [task.id for task in await claim(engine, limit=20)] == expected[20:]

    async def test_a_task_of_a_cancelled_claim_keeps_its_position(self, engine: Engine, clock: ManualClock) -> None:
        """Tasks that were submitted later must not overtake it."""
        await engine.add([new("first")])
        clock.advance(60)
        await engine.add([new("second")])
        clock.advance(60)
        for steps in range(25):
            leaving = asyncio.create_task(claim(engine, limit=1, lease=600))
            for _ in range(steps):
                await asyncio.sleep(0)
            leaving.cancel()
            (left,) = await asyncio.gather(leaving, return_exceptions=True)
            if isinstance(left, list):  # the claim ended before it was cancelled
                await engine.apply([release(task, None) for task in left])
        tasks: list[Task] = []
        async with asyncio.timeout(120):
            while {task.id for task in tasks} != {task_id("first"), task_id("second")}:
                await engine.apply([release(task, None) for task in tasks])
                await engine.wait(claim_request(limit=2), 0.05)
                tasks = await claim(engine, limit=2)
        assert [task.id for task in tasks] == [task_id("first"), task_id("second")]

    async def test_a_promoted_task_goes_before_all_tasks_submitted_after_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """High tasks arrive twice as fast as they are claimed: without promotion, the other two would wait forever."""
        await engine.add([new("medium", priority=6), new("low", priority=9)])
        ended: dict[str, int] = {}
        for minute in range(1, 33):
            await engine.add([new(2 * minute + n, priority=0) for n in range(2)])
            clock.advance(60)
            ended[(await claim_one(engine)).id] = minute
        assert (ended[task_id("medium")], ended[task_id("low")]) == (20, 30)
        highs = [ended[task_id(n)] for n in range(2, 66) if task_id(n) in ended]
        assert highs == sorted(highs) and len(highs) == 30

    async def test_tasks_with_different_ageing_are_promoted_independently(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new("never", priority=9, ageing=float("inf"))])
        clock.advance(1)
        await engine.add([new("slow", priority=6, ageing=100.0)])
        clock.advance(1)
        await engine.add([new("fast", priority=5, ageing=10.0)])
        clock.advance(49)
        await engine.add([new("high", priority=0)])
        clock.advance(1)
        assert (await claim_one(engine)).id == task_id("fast")
        clock.advance(548)
        await engine.add([new("new high", priority=0)])
        clock.advance(1)
        order = [task.id for task in await claim(engine)]
        assert order == [task_id(name) for name in ("slow", "high", "new high", "never")]

    async def test_tasks_of_many_lanes_are_claimed_in_the_order_of_the_model(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """Some tasks are promoted, some are for other workers, and some types have a limit."""
        table = Table()
        tasks = [
            new(n, queue="xy"[n % 2], type=f"t{n % 97}", needs=((), (), ("gpu",))[n % 3], priority=(0, 5, 9)[n % 5 % 3])
            for n in range(140)
        ]
        for at in range(0, 140, 14):
            batch = tasks[at : at + 14]
            assert await engine.add(batch) == table.add(batch, clock.now)
            clock.advance(200.0)
        asked = (
            claim_request(limit=7, lease=3e9),
            claim_request(limit=7, lease=3e9, queues=("y",), capabilities=frozenset({"gpu"})),
            claim_request(limit=7, lease=3e9, types=("t4", "t7", "t96", "none")),
            claim_request(
                limit=7, lease=3e9, types=tuple(f"t{n}" for n in range(2, 90)), per_type_limits={"t2": 0, "t3": 1}
            ),
            claim_request(limit=3, lease=3e9, types=("t95",), queues=("x",), capabilities=frozenset({"gpu"})),
            claim_request(limit=7, lease=3e9, per_type_limits={f"t{n}": n % 2 for n in range(40)}),
        )
        for one in asked:
            expected = [task.id for task in table.claim(one, clock.now)]
            assert [task.id for task in await engine.claim(one)] == expected
        left = 140 - sum(task.attempt for task in table.tasks.values())
        rest = claim_request(limit=140, lease=3e9, capabilities=frozenset({"gpu"}))
        expected = [task.id for task in table.claim(rest, clock.now)]
        assert len(expected) == left
        assert [task.id for task in await engine.claim(rest)] == expected
        assert await claim(engine, limit=140, capabilities=frozenset({"gpu"})) == []

    async def test_requested_types_behind_many_others_are_claimed_in_one_call(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """A few of their tasks come first; the rest come after hundreds of lanes of other types."""
        types = tuple(f"wanted{n}" for n in range(70))
        await engine.add([new(n, type=types[n]) for n in range(3)])
        clock.advance(1)
        await engine.add([new(10 + n, type=f"other{n}") for n in range(300)])
        clock.advance(1)
        await engine.add([new(400 + n, type=types[n]) for n in range(70)])
        claimed = await claim(engine, types=types, limit=9, per_type_limits={"wanted1": 1})
        assert [task.id for task in claimed] == [task_id(n) for n in (0, 1, 2, 400, 402, 403, 404, 405, 406)]
        assert len(await claim(engine, types=types, limit=70)) == 64

    async def test_lanes_with_mixed_ageing_keep_their_order_among_many_lanes(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        """Promoted tasks that come after a newer task of their lane must not hide the heads of other lanes."""
        table = Table()

        async def add(*tasks: NewTask) -> None:
            assert await engine.add(tasks) == table.add(tasks, clock.now)

        await add(*(new(n, type="mixed", priority=1, ageing=100.0) for n in range(20)))
        clock.advance(40)
        await add(new(30, type="single", priority=1, ageing=10.0))
        clock.advance(10)
        await add(new(31, type="mixed", priority=1, ageing=10.0))
        await add(*(new(100 + n, type=f"t{n}", priority=9) for n in range(70)))
        clock.advance(100)
        for limit in (4, 5, 60):
            one = claim_request(limit=limit, lease=3e9)
            assert [task.id for task in await engine.claim(one)] == [task.id for task in table.claim(one, clock.now)]
