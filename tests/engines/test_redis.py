import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from qo.clock import system_clock
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.redis import RedisEngine, scripts
from qo.engines.redis.address import address_of
from qo.engines.redis.doctor import _version
from qo.errors import InvalidSetting, StorageError
from qo.model import NEW, Filter, RetryPolicy, after_error, apply, cancel, complete, created, fail
from qo.testing import EngineContract, ManualClock
from qo.testing.engine_damage import DamageContract
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.conditions import until
from tests.engines.damage import damage_redis
from tests.engines.redis_engines import opened
from tests.servers.redis import Server, running

ROOT = Path(__file__).parents[2]
names = count()


def fresh(server: Server) -> str:
    """The URL of an empty queue."""
    return f"{server.url}?prefix=t{next(names)}"


class TestRedis(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, redis_server: Server) -> AsyncIterator[RedisEngine]:
        async with opened(fresh(redis_server), clock) as engine:
            yield engine

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_redis(engine, task_id, "d")


class TestRedisDamagedState(DamageContract):
    """Damage in a field that the scripts read."""

    @pytest.fixture
    async def engine(self, clock: ManualClock, redis_server: Server) -> AsyncIterator[RedisEngine]:
        async with opened(fresh(redis_server), clock) as engine:
            yield engine

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_redis(engine, task_id, "s")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, redis_server: Server) -> AsyncIterator[RedisEngine]:
    async with opened(fresh(redis_server), clock) as engine:
        yield engine


# --- the address


def test_a_url_names_a_server_a_database_and_a_prefix() -> None:
    address = address_of("redis://me:p%40ss@db.example:7000/3?prefix=mail")
    assert address.hosts == (("db.example", 7000),)
    assert (address.db, address.username, address.password, address.prefix) == (3, "me", "p@ss", "mail")
    assert address_of("redis://localhost").hosts == (("localhost", 6379),)
    assert address_of("rediss://[::1]:7/").hosts == (("::1", 7),)
    assert address_of("rediss://h").tls


def test_a_url_may_name_sentinels() -> None:
    address = address_of("redis+sentinel://:pw@a:1,b/2?service=mymaster")
    assert address.hosts == (("a", 1), ("b", 26379))
    assert (address.db, address.service, address.password) == (2, "mymaster", "pw")


def test_a_url_sets_how_many_replicas_must_confirm_a_write() -> None:
    assert address_of("redis://h").replicas == 0
    assert address_of("redis://h?replicas=2").replicas == 2
    assert address_of("redis+sentinel://h?service=s").replicas is None  # all that are connected
    assert address_of("redis+sentinel://h?service=s&replicas=all").replicas is None
    assert address_of("redis+sentinel://h?service=s&replicas=1").replicas == 1


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://", "names no server"),
        ("redis://h:70000000", "names no server"),
        ("redis://h/first", "not a Redis database"),
        ("redis://h?colour=red", "'colour'.*prefix"),
        ("redis://h?prefix=a b", "not a name"),
        ("redis://h?prefix={a}", "not a name"),
        ("redis://h1,h2", "redis\\+sentinel://"),
        ("redis+sentinel://h", "service=mymaster"),
        ("redis://h?service=mymaster", "'service'"),
        ("redis://h?replicas=all", "replicas=1"),
        ("redis+sentinel://h?service=s&replicas=-1", "replicas=1"),
    ],
)
def test_an_invalid_url_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        open_engine(url)


async def test_a_password_is_never_shown(redis_server: Server) -> None:
    url = redis_server.url.replace("//", "//:sesame@") + "?archive=postgresql://u:sesame@h/db"
    engine = open_engine(url)
    try:
        with pytest.raises(StorageError) as refused:
            await engine.open()
    finally:
        await engine.close()
    shown = f"{refused.value} {refused.value.__cause__} {engine!r} {address_of(url)!r}"
    assert "sesame" not in shown


# --- keys


async def test_prefixes_keep_queues_apart(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as mine, opened(fresh(redis_server)) as yours:
        await mine.add([new()])
        await mine.write_note("n", b"1", expected=NEW)
        assert await yours.claim(claim_request()) == await yours.find(Filter(), limit=9) == []
        assert (await yours.notes(""), await yours.count()) == ([], {})
        assert len(await mine.claim(claim_request())) == 1


async def test_all_keys_are_in_one_slot_of_a_cluster(engine: RedisEngine, redis_server: Server) -> None:
    await engine.add([new(0), new(1, delay=9.0)])
    await engine.apply([complete(await claim_one(engine), b"1")])
    await engine.write_note("n", b"1", expected=NEW)
    tag = f"{{{engine.address.prefix}}}:".encode()
    with contextlib.closing(Redis(port=redis_server.port)) as client:
        assert any(client.scan_iter(tag + b"*"))
        assert all(key.startswith(b"{") for key in client.scan_iter())


async def test_a_deleted_task_leaves_no_keys(engine: RedisEngine, redis_server: Server) -> None:
    await engine.add([new(n, delay=float(n)) for n in range(3)])
    await engine.apply([cancel(task_id(n)) for n in range(3)])
    assert await engine.delete([task_id(n) for n in range(3)]) == [True] * 3
    tag = f"{{{engine.address.prefix}}}:".encode()
    with contextlib.closing(Redis(port=redis_server.port)) as client:
        left = {key.removeprefix(tag).partition(b":")[0] for key in client.scan_iter(tag + b"*")}
        receipts = list(client.scan_iter(tag + b"receipt:*"))
        assert left == {b"format", b"receipt"}
        assert all(0 < client.ttl(key) <= 30 for key in receipts)


# --- exactness


async def test_payloads_and_results_are_stored_unchanged(engine: RedisEngine) -> None:
    every = bytes(range(256)) * 8
    samples = [
        every,
        b"",
        b"\0",
        b"[]",
        b'{"a":[],"b":{}}',
        b"18446744073709551615",
        b"-9223372036854775808",
        b"x" * 300_000,
    ]
    await engine.add([new(n, payload=data) for n, data in enumerate(samples)])
    tasks = {task.id: task for task in await claim(engine, limit=99)}
    assert [tasks[task_id(n)].payload for n in range(len(samples))] == samples
    await engine.apply([complete(tasks[task_id(n)], data) for n, data in enumerate(samples)])
    assert [(await stored(engine, n)).result for n in range(len(samples))] == samples


async def test_times_and_numbers_keep_every_digit(engine: RedisEngine, clock: ManualClock) -> None:
    clock.now = 1_700_000_000.1234567
    policy = RetryPolicy(initial=0.1, max=1 / 3, multiplier=1.1, jitter=0.07, timeout_growth=1.0000001)
    described = new(timeout=1 / 3, delay=0.1, retry=policy, ageing=0.1, priority=7, max_retries=10_000)
    await engine.add([described])
    assert await stored(engine) == created(described, clock.now)
    clock.advance(0.1)
    task = await claim_one(engine, lease=1 / 7)
    assert task.lease_expires_at == clock.now + 1 / 7
    await engine.apply([after_error(task, "e", random=0.123456789)])
    again = await stored(engine)
    assert again == apply(task, after_error(task, "e", random=0.123456789), clock.now)
    behind = "ffffffff-ffff-8fff-bfff-ffffffffffff"
    assert await engine.find(Filter(), limit=9, after=f"{task.created_at!r}~{behind}") == [again]


async def test_texts_are_stored_unchanged(engine: RedisEngine) -> None:
    await engine.add([new(idempotency_key='k"\\é\u2028', trace_id="\U0001f600")])
    await engine.apply([fail(await claim_one(engine), 'é "\n\U0001f600'), cancel(task_id(9))])
    task = await stored(engine)
    assert (task.idempotency_key, task.trace_id, task.error) == ('k"\\é\u2028', "\U0001f600", 'é "\n\U0001f600')
    assert [event.error for event in await engine.history(task.id)] == [None, None, 'é "\n\U0001f600']


async def test_times_are_those_of_the_servers_clock(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        before = system_clock()
        await engine.add([new()])
        assert before - 1 < (await stored(engine)).created_at < system_clock() + 1


# --- batches and lanes


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


# --- waiting


async def test_waiting_ends_when_a_delayed_task_is_due(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.add([new(delay=0.15)])
        assert await claim(engine) == []
        await asyncio.wait_for(engine.wait(claim_request(), 60), 10)
        assert len(await claim(engine)) == 1


async def test_waiting_ends_for_a_task_that_is_due_earlier_than_expected(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.add([new(0, delay=900.0)])
        waiting = asyncio.create_task(engine.wait(claim_request(), 60))
        await settled(engine)
        await engine.add([new(1, delay=0.1)])
        await asyncio.wait_for(waiting, 10)


async def test_waiting_does_not_end_for_tasks_that_the_worker_cannot_run(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        waiting = asyncio.create_task(engine.wait(claim_request(types=("mine",)), 60))
        await settled(engine)
        told = engine.watch.notifications
        await engine.add([new(0, type="theirs"), new(1, type="mine", needs=("gpu",))])
        await until(lambda: engine.watch.notifications > told)
        assert not waiting.done()
        await engine.add([new(2, type="mine")])
        await asyncio.wait_for(waiting, 10)


async def test_waiting_ends_when_another_process_adds(redis_server: Server) -> None:
    url = fresh(redis_server)
    code = "import asyncio, sys; from tests.engines.redis_worker import add_one; asyncio.run(add_one(sys.argv[1]))"
    async with opened(url) as engine:
        waiting = asyncio.create_task(engine.wait(claim_request(), 60))
        await settled(engine)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, url, env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        )
        await asyncio.wait_for(waiting, 20)
        assert await process.wait() == 0
        assert len(await claim(engine)) == 1


async def test_an_idle_wait_sends_no_commands(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.wait(claim_request(), 0.01)
        with contextlib.closing(Redis(port=redis_server.port)) as client:
            before = client.info("stats")["total_commands_processed"]
            for _ in range(5):
                assert await claim(engine) == []
                await engine.wait(claim_request(), 0.02)
            after = client.info("stats")["total_commands_processed"]
        inside = 7  # Redis counts the commands inside a script too
        assert after - before <= 5 * inside + 1


async def settled(engine: RedisEngine) -> None:
    """Wait until a waiter sleeps."""
    await until(lambda: engine.watch.waiters)


# --- the doctor


async def test_the_doctor_finds_no_problem_in_a_working_queue(engine: RedisEngine, redis_server: Server) -> None:
    await engine.add([new(n, delay=float(n % 2)) for n in range(5)])
    await engine.apply([complete(await claim_one(engine)), cancel(task_id(1))])
    findings = {
        finding.name: finding for finding in await examine(f"{redis_server.url}?prefix={engine.address.prefix}")
    }
    assert {name for name, finding in findings.items() if finding.ok is False} == set()
    assert {name for name, finding in findings.items() if finding.ok} >= {"server", "memory", "clock", "counts"}
    assert "5 tasks" in findings["counts"].detail
    assert "everysec" in findings["persistence"].detail
    assert "no replica" in findings["replicas"].detail


async def test_the_doctor_reports_problems() -> None:
    with running("--appendonly", "no", "--maxmemory-policy", "allkeys-lru") as server:
        findings = {finding.name: finding for finding in await examine(server.url)}
        assert findings["memory"].ok is False and "noeviction" in findings["memory"].detail
        assert findings["persistence"].ok is None and "appendonly is off" in findings["persistence"].detail
    (unreachable,) = await examine(server.url)
    assert unreachable.ok is False and "cannot be reached" in unreachable.detail


async def test_the_doctor_finds_a_task_in_the_wrong_index(engine: RedisEngine, redis_server: Server) -> None:
    await engine.add([new(0), new(1)])
    with contextlib.closing(Redis(port=redis_server.port)) as client:
        client.zrem(f'{{{engine.address.prefix}}}:listed:pending:["q","t",[],6]', task_id(1))
    findings = {
        finding.name: finding for finding in await examine(f"{redis_server.url}?prefix={engine.address.prefix}")
    }
    assert findings["counts"].ok is None and "1 tasks differ" in findings["counts"].detail


@pytest.mark.parametrize(
    ("version", "ok"),
    [
        ("7.0.15", None), ("7.2.10", None), ("7.2.11", True), ("7.4.6", True), ("8.0.3", None), ("8.2.2", True),
        ("8.4.0", True), ("6.2.20", True), ("6.2.19", None), ("6.0.16", False),
    ],
)  # fmt: skip
def test_the_doctor_knows_which_versions_are_vulnerable(version: str, ok: bool | None) -> None:
    assert _version({"redis_version": version}).ok is ok
