"""The contract of `claim` and `wait`: leases, a store whose clock is set, concurrent calls."""

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, cast

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.model import AGEING, Filter, Status, Task, cancel, complete, release, renew
from qo.testing.clock import ManualClock
from qo.testing.histories import random_history
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id


class ClaimContract:
    async def test_a_claim_leases_the_task(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new()])
        clock.advance(1)
        task = await claim_one(engine, lease=30.0, lease_id="secret")
        assert (task.status, task.worker_id, task.lease_id, task.attempt) == (Status.RUNNING, "w1", "secret", 1)
        assert (task.started_at, task.lease_expires_at, task.version) == (clock.now, clock.now + 30, 2)
        assert await stored(engine) == task

    async def test_a_running_task_is_not_claimed_even_if_its_lease_has_run_out(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.add([new()])
        await claim_one(engine, lease=30.0)
        assert await claim(engine) == []
        clock.advance(31)
        assert await claim(engine) == []  # only the monitor expires leases, with back-off

    async def test_a_delayed_task_is_claimed_when_it_is_due(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(delay=5.0)])
        assert await claim(engine) == []
        clock.advance(5)
        assert (await claim_one(engine)).id == task_id(0)

    async def test_lower_priority_numbers_go_first_then_older_tasks(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, priority=9), new(1, priority=6)])
        clock.advance(1)
        await engine.add([new(2, priority=6), new(3, priority=0)])
        order = [(await claim_one(engine)).id for _ in range(4)]
        assert order == [task_id(n) for n in (3, 1, 2, 0)]

    async def test_tasks_are_promoted_by_their_waiting_time(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new("medium", priority=6), new("low", priority=9)])
        clock.advance(1199)
        await engine.add([new("early high", priority=0)])
        order = [(await claim_one(engine)).id]
        clock.advance(2)
        await engine.add([new("late high", priority=0)])
        order += [(await claim_one(engine)).id for _ in range(2)]
        clock.advance(600)
        await engine.add([new("last high", priority=0)])
        order += [(await claim_one(engine)).id for _ in range(2)]
        assert order == [task_id(n) for n in ("early high", "medium", "late high", "low", "last high")]

    async def test_ageing_can_be_strict_or_off(self, engine: Engine, clock: ManualClock) -> None:
        await engine.add([new(0, priority=1, ageing=float("inf"))])
        await engine.add([new(1, priority=9, ageing=0.0)])
        clock.advance(1e7)
        await engine.add([new(2, priority=0)])
        assert [(await claim_one(engine)).id for _ in range(3)] == [task_id(n) for n in (1, 2, 0)]

    @pytest.mark.parametrize("ageing", [AGEING, float("inf")])
    async def test_a_batch_keeps_its_order(self, engine: Engine, ageing: float) -> None:
        names = [5, 3, 9, 1, 8, 2]
        await engine.add([new(n, priority=9, ageing=ageing) for n in names])
        assert [(await claim_one(engine)).id for _ in names] == [task_id(n) for n in names]

    async def test_a_claim_returns_only_requested_queues_types_and_needs(self, engine: Engine) -> None:
        await engine.add(
            [
                new(0, queue="x"),
                new(1, queue="y"),
                new(2, queue="x", type="other"),
                new(3, queue="x", needs=("gpu",)),
                new(4, queue="z", needs=("cpu", "gpu")),
            ]
        )
        assert await claim(engine, queues=("nowhere",)) == await claim(engine, types=("nothing",)) == []
        assert [task.id for task in await claim(engine, queues=("x",), types=("t",))] == [task_id(0)]
        assert {task.id for task in await claim(engine)} == {task_id(1), task_id(2)}
        assert [task.id for task in await claim(engine, capabilities=frozenset({"gpu"}))] == [task_id(3)]
        assert [task.id for task in await claim(engine, capabilities=frozenset({"gpu", "cpu"}))] == [task_id(4)]

    async def test_tasks_that_the_worker_cannot_run_do_not_block_others(self, engine: Engine) -> None:
        await engine.add([new(n, type="foreign", priority=0) for n in range(60)])
        await engine.add([new(100 + n, needs=("gpu",), priority=0) for n in range(60)])
        await engine.add([new(200, priority=9)])
        assert [task.id for task in await claim(engine, types=("t",), limit=1)] == [task_id(200)]

    async def test_a_claim_respects_its_limit_and_its_limits_per_type(self, engine: Engine) -> None:
        await engine.add([new(n, type="a", priority=0) for n in range(5)] + [new(10 + n, type="b") for n in range(5)])
        first = await claim(engine, limit=4, per_type_limits={"a": 2})
        assert sorted(task.type for task in first) == ["a", "a", "b", "b"]
        assert [task.type for task in await claim(engine, limit=9, per_type_limits={"a": 0, "b": 1})] == ["b"]
        assert len(await claim(engine, limit=2)) == 2
        assert await claim(engine, limit=0) == []

    async def test_a_repeated_claim_returns_the_same_tasks(self, engine: Engine) -> None:
        await engine.add([new(0), new(1), new(2)])
        first = await claim(engine, lease_id="mine", limit=2)
        again = await claim(engine, lease_id="mine", limit=2, is_repeat=True)
        assert sorted(again, key=lambda task: task.id) == sorted(first, key=lambda task: task.id)
        assert len(await claim(engine, lease_id="other", is_repeat=True)) == 1  # the first request was lost

    async def test_a_claim_cancelled_at_any_step_releases_its_tasks(self, engine: Engine) -> None:
        """Otherwise the task would wait until its lease expires, which counts as a failure."""
        await engine.add([new()])
        for steps in range(25):
            leaving = asyncio.create_task(claim(engine, lease=600))
            for _ in range(steps):
                await asyncio.sleep(0)
            leaving.cancel()
            (left,) = await asyncio.gather(leaving, return_exceptions=True)
            if isinstance(left, list):  # the claim ended before it was cancelled
                assert await engine.apply([release(task) for task in left]) == [True] * len(left)
        async with asyncio.timeout(120):
            while not (tasks := await claim(engine)):
                await engine.wait(claim_request(), 0.05)
        assert [(task.id, task.failures) for task in tasks] == [(task_id(0), 0)]

    async def test_a_claim_cancelled_as_its_result_arrives_releases_its_tasks(self, engine: Engine) -> None:
        for n in range(3):
            await engine.add([new(n)])
            leaving = asyncio.create_task(_Leaving(engine.claim(claim_request(lease=600)), n).run())
            (left,) = await asyncio.gather(leaving, return_exceptions=True)
            if isinstance(left, list):  # the claim awaited fewer futures
                assert await engine.apply([release(task) for task in left]) == [True] * len(left)
        tasks: list[Task] = []
        async with asyncio.timeout(120):
            while len(tasks) < 3:
                await engine.wait(claim_request(), 0.05)
                tasks += await claim(engine)
        assert sorted((task.id, task.failures) for task in tasks) == [(task_id(n), 0) for n in range(3)]


class _Leaving:
    """A call whose caller is cancelled when its `n`-th awaited future (from 0) is done, before the caller resumes."""

    def __init__(self, call: Coroutine[Any, Any, list[Task]], n: int) -> None:
        self._call, self._n = call, n

    async def run(self) -> list[Task]:
        return await self

    def __await__(self) -> Generator[Any, Any, list[Task]]:
        caller = asyncio.current_task()
        assert caller is not None
        steps, error, left = self._call.__await__(), None, self._n
        while True:
            try:
                future = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return cast("list[Task]", end.value)
            if future is not None:
                if left == 0:
                    future.add_done_callback(lambda _: caller.cancel())  # runs before the caller resumes
                left -= 1
            try:
                error = None
                yield future
            except BaseException as thrown:  # noqa: BLE001 - passed on to the call
                error = thrown


class ClockSet:
    """Leases keep their length if the clock of the store is set."""

    @pytest.mark.parametrize("step", [600.0, -600.0], ids=["ahead", "back"])
    async def test_setting_the_clock_neither_shortens_nor_prolongs_a_lease(
        self, engine: Engine, clock: ManualClock, step: float
    ) -> None:
        elapsed = ManualClock()
        client = Client(engine, clock=elapsed)

        def pass_time(seconds: float) -> None:
            clock.advance(seconds)
            elapsed.advance(seconds)

        await engine.add([new(n) for n in range(3)])
        alive, *_ = await claim(engine, lease=30.0)
        assert await client.requeue_stale() == 0
        pass_time(8)
        clock.advance(step)
        pass_time(1)
        assert await client.requeue_stale() == 0  # no lease was renewed since the step
        for _ in range(3):
            assert await engine.apply([renew(alive, 30.0)]) == [True]
            pass_time(6)
            assert await client.requeue_stale() == 0
        pass_time(3)  # 30 seconds after the claim
        assert await client.requeue_stale() == 0
        assert await engine.apply([renew(alive, 30.0)]) == [True]
        pass_time(16)
        assert await client.requeue_stale() == 2
        statuses = [(await stored(engine, n)).status for n in range(3)]
        assert statuses == [Status.RUNNING, Status.PENDING, Status.PENDING]
        pass_time(34)
        assert await client.requeue_stale() == 1


class RaceContract:
    async def test_a_wait_ends_at_its_timeout(self, engine: Engine) -> None:
        await asyncio.wait_for(engine.wait(claim_request(), 0.01), 5)

    async def test_a_wait_ends_when_a_task_is_added(self, engine: Engine) -> None:
        waiting = asyncio.create_task(engine.wait(claim_request(), 30))
        await asyncio.sleep(0.02)
        await engine.add([new()])
        await asyncio.wait_for(waiting, 10)

    async def test_a_second_open_has_no_effect(self, engine: Engine) -> None:
        await engine.add([new()])
        await engine.open()
        assert (await stored(engine)).status is Status.PENDING

    async def test_concurrent_claims_never_return_the_same_task(self, engine: Engine) -> None:
        await engine.add([new(n) for n in range(40)])
        got = await asyncio.gather(*(claim(engine, limit=4, worker_id=f"w{n}") for n in range(10)))
        ids = [task.id for batch in got for task in batch]
        assert len(ids) == len(set(ids))
        assert ids

    async def test_concurrent_submissions_of_one_id_create_one_task(self, engine: Engine) -> None:
        answers = await asyncio.gather(*(engine.add([new(payload=b"%d" % n)]) for n in range(8)))
        assert sorted(added.new for (added,) in answers) == [False] * 7 + [True]
        winner = next(n for n, (added,) in enumerate(answers) if added.new)
        assert (await stored(engine)).payload == b"%d" % winner

    async def test_concurrent_submissions_are_all_stored(self, engine: Engine) -> None:
        answers = await asyncio.gather(*(engine.add([new(n)]) for n in range(20)))
        assert answers == [[(task_id(n), True)] for n in range(20)]
        assert len(await engine.find(Filter(), limit=99)) == 20

    async def test_one_of_two_concurrent_changes_wins(self, engine: Engine) -> None:
        await engine.add([new()])
        task = await claim_one(engine)
        answers = await asyncio.gather(engine.apply([complete(task)]), engine.apply([cancel(task.id)]))
        assert sorted(answers) == [[False], [True]]

    @pytest.mark.parametrize("seed", range(12))
    async def test_random_histories_are_answered_as_the_model_answers(
        self, engine: Engine, clock: ManualClock, seed: int
    ) -> None:
        await random_history(engine, clock, seed)
