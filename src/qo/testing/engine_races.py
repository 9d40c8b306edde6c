"""The contract of `wait`, and of concurrent calls."""

import asyncio

import pytest

from qo.engine import Engine
from qo.model import Filter, Status, cancel, complete
from qo.testing.clock import ManualClock
from qo.testing.histories import random_history
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id


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
