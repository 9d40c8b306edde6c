"""The indexes of lanes and their heads in Redis: after any calls they say what the ready tasks say."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from qo.engines.redis import RedisEngine
from qo.model import cancel, complete, release
from qo.testing import ManualClock
from qo.testing.samples import claim, new
from tests.engines.redis_engines import clock, engine, fresh, opened
from tests.servers.redis import Server

__all__ = ["clock", "engine"]  # fixtures


def _capabilities(lane: bytes) -> list[str]:
    """The needs of a lane without its group."""
    return [need for need in json.loads(lane)[2] if not need.startswith("!")]


class Indexes:
    """What is stored under a prefix."""

    def __init__(self, redis: Redis, url: str) -> None:
        self._redis: Any = redis
        self._tag = f"{{{url.partition('prefix=')[2]}}}:"

    def check(self) -> None:
        firsts = {lane: self._redis.zrange(key, 0, 0, withscores=True)[0] for lane, key in self._keys("ready:").items()}
        heads = self._redis.hgetall(f"{self._tag}head")
        assert {lane: record[9:] for lane, record in heads.items()} == {
            lane: first for lane, (first, _) in firsts.items()
        }
        kept: dict[bytes, set[bytes]] = {}
        for lane, record in heads.items():
            queue, needs = json.loads(lane)[0], _capabilities(lane)
            for group in ("*", f"={queue}"):
                name = f"{'promoted' if record[:1] == b'p' else 'unpromoted'}:{group}:{' '.join(needs)}"
                kept.setdefault(name.encode(), set()).add(record[1:] + lane)
        found = self._keys("promoted:", "promoted:") | self._keys("unpromoted:", "unpromoted:")
        assert {name: set(self._redis.zrange(key, 0, -1)) for name, key in found.items()} == kept
        needs_of = Counter(" ".join(_capabilities(lane)).encode() for lane in heads)
        assert {name: int(n) for name, n in self._redis.hgetall(f"{self._tag}needs").items()} == needs_of
        by_type = {name: self._redis.smembers(key) for name, key in self._keys("typed:").items()}
        assert {lane for lanes in by_type.values() for lane in lanes} == heads.keys()
        for status in ("pending", "running", "completed", "cancelled"):
            assert (
                set(self._redis.zrange(f"{self._tag}lanes:{status}", 0, -1)) == self._keys(f"listed:{status}:").keys()
            )

    def _keys(self, start: str, shown: str = "") -> dict[bytes, bytes]:
        before = len(self._tag + start)
        return {shown.encode() + key[before:]: key for key in self._redis.scan_iter(f"{self._tag}{start}*")}


@pytest.mark.parametrize("seed", range(4))
async def test_heads_and_lanes_agree_with_the_tasks_after_any_calls(redis_server: Server, seed: int) -> None:
    dice, clock, number = random.Random(seed), ManualClock(), 0
    # A database of its own: a scan reads the names of all keys in one, and other tests leave many.
    url = fresh(redis_server).replace("/0?", "/8?")
    with Redis.from_url(url.partition("?")[0]) as redis:
        redis.flushdb()
        indexes = Indexes(redis, url)
        async with opened(url, clock) as engine:
            for _ in range(40):
                clock.advance(dice.choice([0.0, 1.0, 700.0]))
                match dice.randrange(3):
                    case 0:
                        size = dice.choice([1, 3, 40])
                        await engine.add([_drawn(dice, number + n) for n in range(size)])
                        number += size
                    case 1:
                        types = dice.choice([(), (), ("t1", "t2")])
                        able: Any = {"capabilities": ("gpu",), "takes_groups": True, "per_group_limits": {"t1": 2}}
                        tasks = await claim(engine, limit=dice.choice([1, 5, 60]), types=types, **able)
                        ends = [dice.choice([complete(task), release(task), cancel(task.id)]) for task in tasks]
                        await engine.apply(ends[: dice.randrange(len(ends) + 1)])
                    case _:
                        await claim(engine, limit=dice.choice([1, 20]), queues=("q1",))
                indexes.check()
        assert redis.dbsize(), "the engine uses another database"


def _drawn(dice: random.Random, number: int) -> Any:
    return new(
        number,
        queue=f"q{dice.randrange(3)}",
        type=f"t{dice.randrange(9)}",
        needs=dice.choice([(), (), ("gpu",)]),
        group=dice.choice([None, None, "customer=1", "customer=2"]),
        priority=dice.choice([0, 6, 9]),
        delay=dice.choice([0.0, 0.0, 5.0]),
    )


async def _commands(redis: Redis, call: Any) -> int:
    redis.config_resetstat()
    await call
    stats: Any = redis.info("commandstats")
    return sum(entry["calls"] for name, entry in stats.items() if "config" not in name and "info" not in name)


async def test_tasks_behind_the_heads_of_many_lanes_cost_no_command_for_each_lane(
    engine: RedisEngine, clock: ManualClock, redis_server: Server
) -> None:
    with Redis.from_url(redis_server.url) as redis:
        await engine.add([new(n, type=f"t{n}") for n in range(90)])
        clock.advance(1)
        behind = await _commands(redis, engine.add([new(100 + n, type=f"t{n}") for n in range(90)]))
        assert behind < 90 * 4 + 15  # for each task: look, store, list and make ready


async def test_a_claim_of_many_lanes_changes_their_heads_with_few_commands(
    engine: RedisEngine, redis_server: Server
) -> None:
    with Redis.from_url(redis_server.url) as redis:
        await engine.add([new(n, type=f"t{n}") for n in range(200)])
        used = await _commands(redis, claim(engine, limit=90))
        assert used < 90 * 6 + 25  # for each lane: read it and its task, store the task, list it, and forget the type


async def test_heads_that_an_older_build_filed_by_group_are_filed_again(redis_server: Server) -> None:
    """It takes the group of a task for a capability, and expires leases of such tasks all the same."""
    clock, url = ManualClock(), fresh(redis_server).replace("/0?", "/8?")
    async with opened(url, clock) as engine:
        await engine.add([new(n, group=f"customer={n}", priority=(0, 5)[n % 2]) for n in range(4)] + [new(9)])
        with Redis(port=redis_server.port, db=8) as connection:
            redis: Any = connection
            tag = f"{{{url.partition('prefix=')[2]}}}:"
            for kind in ("promoted", "unpromoted"):
                for member, score in redis.zrange(f"{tag}{kind}:*:", 0, -1, withscores=True):
                    needs = " ".join(json.loads(member[52:])[2])
                    if needs:
                        for group in ("*", "=q"):
                            redis.zrem(f"{tag}{kind}:{group}:", member)
                            redis.zadd(f"{tag}{kind}:{group}:{needs}", {member: score})
                        redis.hincrby(f"{tag}needs", needs, 1)
                        redis.hincrby(f"{tag}needs", "", -1)
            assert redis.hlen(f"{tag}needs") == 5
            assert len(await claim(engine, takes_groups=True, limit=2)) == 2
            Indexes(connection, url).check()
        assert len(await claim(engine, takes_groups=True)) == 3
