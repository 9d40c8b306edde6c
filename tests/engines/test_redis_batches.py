"""Large batches, many lanes and the cost of claims and submits."""

import contextlib
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from qo.engines.redis import RedisEngine, scripts
from qo.model import Filter, RetryPolicy, Status, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, task_id
from tests.engines.damage import damage_redis
from tests.engines.redis_engines import clock, engine, fresh, opened
from tests.servers.redis import Server

__all__ = ["clock", "engine"]  # fixtures


async def test_a_large_batch_keeps_its_order_and_is_claimed_completely(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        ids = [task_id(1_000_000 - n) for n in range(1050)]
        added = await engine.add([new(1_000_000 - n) for n in range(1050)])
        assert [answer.id for answer in added] == ids
        listed = await engine.find(Filter(), limit=2000)
        assert [task.id for task in listed] == ids[::-1]
        tasks = await claim(engine, limit=1000)
        assert {task.id for task in tasks} == set(ids[:1000])
        assert await engine.apply([complete(task) for task in tasks]) == [True] * 1000


async def test_a_batch_may_be_larger_than_one_exchange(engine: RedisEngine) -> None:
    await engine.add([new(n, payload=b"%d" % n + b"x" * 100_000) for n in range(250)])
    tasks = await claim(engine, limit=250)
    assert {int(task.payload.rstrip(b"x")) for task in tasks} == set(range(250))
    assert await engine.apply([complete(task, task.payload) for task in tasks]) == [True] * 250


async def test_per_type_limits_hold_for_a_large_claim(engine: RedisEngine) -> None:
    await engine.add([new(n, type="a" if n % 2 else "b") for n in range(600)])
    tasks = await claim(engine, limit=500, per_type_limits={"a": 130})
    assert Counter(task.type for task in tasks) == {"a": 130, "b": 300}


async def test_many_lanes_are_merged_by_rank(engine: RedisEngine, clock: ManualClock) -> None:
    for n in range(60):
        await engine.add([new(n, queue=f"q{n % 20}", type=f"t{n % 3}", needs=("gpu",) if n % 7 == 0 else ())])
        clock.advance(1)
    order = [(await claim_one(engine)).id for _ in range(5)]
    assert order == [task_id(n) for n in (1, 2, 3, 4, 5)]
    rest = await claim(engine, limit=20)
    assert {task.id for task in rest} == {task_id(n) for n in range(6, 30) if n % 7}
    listed = await engine.find(Filter(types=("t1",)), limit=5)
    assert [task.id for task in listed] == [task_id(n) for n in (58, 55, 52, 49, 46)]


async def test_thousands_of_tasks_that_become_due_at_once_are_all_claimed(
    engine: RedisEngine, clock: ManualClock
) -> None:
    await engine.add([new(n, delay=5.0) for n in range(1200)])
    clock.advance(6)
    got: list[str] = []
    for _ in range(20):
        got += [task.id for task in await claim(engine, limit=100)]
    assert len(got) == len(set(got)) == 1200


@pytest.mark.parametrize("types", [(), ("t1", "t2")])
async def test_a_claim_costs_as_much_with_many_lanes_as_with_few(
    engine: RedisEngine, clock: ManualClock, redis_server: Server, types: tuple[str, ...]
) -> None:
    async def commands() -> int:
        with contextlib.closing(Redis(port=redis_server.port)) as client:
            before = sum(stats["calls"] for stats in client.info("commandstats").values())
            assert len(await claim(engine, limit=2, types=types)) == 2
            await engine.wait(claim_request(types=types), 0)
            after = sum(stats["calls"] for stats in client.info("commandstats").values())
            return int(after - before)

    await engine.add([new(n, type=f"t{n % 5}", priority=6) for n in range(50)])
    await commands()
    few = await commands()
    clock.advance(60)
    await engine.add([new(100 + n, type=f"t{n}", queue=f"q{n % 3}", priority=9) for n in range(1000)])
    clock.advance(1799)
    many = [await commands() for _ in range(3)]  # the first claim promotes heads
    assert many[-1] <= 1.5 * few
    clock.advance(3600)
    await commands()
    await commands()
    assert await commands() <= 1.5 * few


async def test_a_damaged_task_that_becomes_due_while_a_worker_waits_is_set_aside(
    engine: RedisEngine, clock: ManualClock
) -> None:
    await engine.add([new(0, delay=60.0)])
    await damage_redis(engine, task_id(0), "s")
    clock.advance(60)
    await engine.wait(claim_request(), 0.0)
    assert await claim(engine) == []
    assert [note.name for note in await engine.notes("quarantine/")] == [f"quarantine/tasks/{task_id(0)}"]


def dump(redis: Redis, prefix: str) -> dict[str, object]:
    """All that is stored under a prefix, without receipts."""
    found: dict[str, object] = {}
    for key in redis.scan_iter(f"{{{prefix}}}:*"):
        kind, name = redis.type(key), key.decode().partition("}")[2]
        if kind == b"hash":
            found[name] = redis.hgetall(key)
        elif kind == b"zset":
            found[name] = redis.zrange(key, 0, -1, withscores=True)
        elif kind == b"set":
            found[name] = redis.smembers(key)
    return found


async def test_the_fast_path_of_a_single_task_stores_the_same(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = []
    with Redis.from_url(redis_server.url) as redis:
        for is_fast in (True, False):
            if not is_fast:
                monkeypatch.setattr(scripts, "_FAST_PATHS", {})
                scripts.script.cache_clear()
            url, clock = fresh(redis_server), ManualClock()
            async with opened(url, clock) as engine:
                for n, options in enumerate(SINGLE_TASKS):
                    clock.advance(0.1)
                    assert await engine.add([new(n, **options)]) == [(task_id(n), True)]
                    assert await engine.add([new(n, **options)]) == [(task_id(n), False)]
            dumps.append(dump(redis, url.partition("prefix=")[2]))
    scripts.script.cache_clear()
    assert dumps[0] == dumps[1]
    assert len(dumps[0]) > len(SINGLE_TASKS)


SINGLE_TASKS: list[dict[str, Any]] = [
    {},  # the first of its lane
    {"payload": b"\x00\xff", "trace_id": "t", "timeout": 7.5},
    {"delay": 5.0},
    {"run_at": 1.0},
    {"run_at": 4e9},
    {"ageing": 0.0},  # goes before the first one
    {"ageing": float("inf")},
    {"priority": 0},
    {"priority": 0},
    {"needs": ("gpu",)},
    {"needs": ("gpu",), "retry": RetryPolicy(initial=9.0), "max_retries": 0},
    {"idempotency_key": "k", "next_id": task_id(99)},
]


async def test_a_single_task_takes_few_calls(engine: RedisEngine, clock: ManualClock, redis_server: Server) -> None:
    await engine.add([new("first")])
    clock.advance(1)
    with Redis.from_url(redis_server.url) as redis:
        redis.config_resetstat()
        await engine.add([new(0)])
        stats = {name: entry["calls"] for name, entry in redis.info("commandstats").items()}
    assert stats["cmdstat_evalsha"] == 1
    assert sum(number for name, number in stats.items() if "config" not in name and "info" not in name) <= 9


async def test_delayed_tasks_do_not_slow_down_a_claim(engine: RedisEngine, redis_server: Server) -> None:
    async def commands() -> int:
        with contextlib.closing(Redis(port=redis_server.port)) as client:
            before = sum(stats["calls"] for stats in client.info("commandstats").values())
            assert len(await claim(engine, limit=1)) == 1
            after = sum(stats["calls"] for stats in client.info("commandstats").values())
            return int(after - before)

    await engine.add([new("a"), new("b"), new("c"), new("d")])
    await claim(engine, limit=1)
    few = await commands()
    await engine.add([new(n, delay=500.0 + n) for n in range(2000)])
    assert await commands() <= few


async def test_a_search_skips_many_tasks_that_do_not_match(engine: RedisEngine, clock: ManualClock) -> None:
    await engine.add([new("wanted")])
    (mine,) = await claim(engine, worker_id="rare")
    clock.advance(1)
    await engine.add([new(n) for n in range(2500)])
    assert [task.id for task in await engine.find(Filter(worker_id="rare"), limit=3)] == [mine.id]
    assert await engine.find(Filter(), limit=0) == []


@pytest.mark.parametrize("pause", [0.0, 1.0], ids=["submitted together", "submitted one by one"])
async def test_a_count_skips_no_task_while_others_are_moved_to_the_archive(
    engine: RedisEngine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr(scripts, "_TASKS_PER_COUNT", 2)
    for n in range(9):
        await engine.add([new(n, batch="b")])
        clock.advance(pause)
    await engine.add([new("other", batch="c")])
    tasks = await claim(engine, limit=4)
    await engine.apply([complete(task) for task in tasks])
    run, pages = scripts.ScriptRunner.run, 0

    async def run_and_move(self: scripts.ScriptRunner, name: str, *arguments: Any) -> Any:
        nonlocal pages
        answer = await run(self, name, *arguments)
        if name == "count_batch":
            pages += 1
            if pages == 2:
                finished = await engine.find(Filter(batch="b", statuses=(Status.COMPLETED,)), limit=9)
                assert await engine.evict(finished) == (set(), set())
        return answer

    monkeypatch.setattr(scripts.ScriptRunner, "run", run_and_move)
    counted = await engine.count("b")
    assert sum(number for key, number in counted.items() if key.status is Status.PENDING) == 5
