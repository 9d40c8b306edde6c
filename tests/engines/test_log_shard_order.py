"""The order of claims from several shards of a log is that of one table."""

import random

import pytest
from msgspec.structs import replace

from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.replicated_log import LogOptions, ReplicatedLogEngine, SubmitMode
from qo.engines.replicated_log.keys import shard_of
from qo.model import complete
from qo.model.table import Table
from qo.testing import ManualClock
from qo.testing.samples import claim_request, new, task_id
from tests.engines.compacting_log import COLD_SEGMENTS, CompactingEngine

SHARDS = 3
PLAIN = LogOptions(shard_count=SHARDS, submit=SubmitMode.DIRECT)
COLD = replace(COLD_SEGMENTS, shard_count=SHARDS, submit=SubmitMode.DIRECT)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[PLAIN, COLD], ids=["in tables", "in segments"])
def engine(clock: ManualClock, request: pytest.FixtureRequest) -> Engine:
    return CompactingEngine(ReplicatedLogEngine(MemoryBucket(clock), request.param, clock=clock))


def in_shard(shard: int, *, after: int = 0) -> int:
    """The first number above `after` of a task in a shard."""
    return next(n for n in range(after + 1, 999) if shard_of(task_id(n), SHARDS) == shard)


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_task_of_another_shard_moves_the_promoted_tasks_of_its_lane_back(
    engine: Engine, clock: ManualClock, limit: int
) -> None:
    """A shard that holds only the old task of the lane would take it before the one of another lane."""
    old = in_shard(1)
    other, newer = in_shard(1, after=old), in_shard(2)
    await engine.add([new(old, type="mixed", priority=1, ageing=100.0)])
    clock.advance(40)
    await engine.add([new(other, type="single", priority=1, ageing=10.0)])
    clock.advance(10)
    await engine.add([new(newer, type="mixed", priority=1, ageing=10.0)])
    clock.advance(100)
    claimed = [task.id for task in await engine.claim(claim_request(limit=limit))]
    assert claimed == [task_id(n) for n in (other, newer, old)][:limit]


@pytest.mark.parametrize("seed", range(4))
async def test_random_claims_from_several_shards_follow_the_model(
    engine: Engine, clock: ManualClock, seed: int
) -> None:
    dice, table, number = random.Random(seed), Table(), 0
    for _ in range(25):
        clock.advance(dice.choice((1.0, 30.0, 200.0)))
        size = dice.randint(0, 12)
        tasks = [
            new(
                number + n,
                type=dice.choice("tuv"),
                priority=dice.choice((1, 5)),
                ageing=dice.choice((0.0, 10.0, 100.0)),
                delay=dice.choice((0.0, 0.0, 50.0)),
                group=dice.choice((None, "customer=1")),
            )
            for n in range(size)
        ]
        number += size
        assert await engine.add(tasks) == table.add(tasks, clock.now)
        request = claim_request(
            limit=dice.choice((1, 2, 5, 20)),
            takes_groups=dice.random() < 0.7,
            per_type_limits=dice.choice(({}, {"t": 1}, {"t": 0, "u": 2})),
            group_limits=dice.choice(({}, {"v customer=1": 1})),
        )
        expected = table.claim(request, clock.now)
        claimed = await engine.claim(request)
        assert [task.id for task in claimed] == [task.id for task in expected]
        done = [complete(task) for task in claimed if dice.random() < 0.8]
        assert await engine.apply(done) == table.apply(done, clock.now)
