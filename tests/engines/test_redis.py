import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis

from qo.clock import system_clock
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.redis import RedisEngine
from qo.engines.redis.address import address_of
from qo.engines.redis.doctor import _version
from qo.errors import InvalidSetting, StorageError
from qo.model import NEW, Filter, RetryPolicy, after_error, apply, cancel, complete, created, fail
from qo.testing import EngineContract, ManualClock
from qo.testing.engine_damage import DamageContract
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.engines.damage import damage_redis
from tests.engines.redis_engines import clock, engine, fresh, opened
from tests.servers.redis import Server, running

__all__ = ["clock", "engine"]  # fixtures


ROOT = Path(__file__).parents[2]


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
    assert findings["counts"].ok is None and "1 task in a wrong index" in findings["counts"].detail


@pytest.mark.parametrize(
    ("version", "ok"),
    [
        ("7.0.15", None), ("7.2.10", None), ("7.2.11", True), ("7.4.6", True), ("8.0.3", None), ("8.2.2", True),
        ("8.4.0", True), ("6.2.20", True), ("6.2.19", None), ("6.0.16", False),
    ],
)  # fmt: skip
def test_the_doctor_knows_which_versions_are_vulnerable(version: str, ok: bool | None) -> None:
    assert _version({"redis_version": version}).ok is ok
