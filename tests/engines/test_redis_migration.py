"""Queues of earlier formats, also if their migration is interrupted."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis

from qo.cli import main
from qo.engines.redis import RedisEngine
from qo.engines.redis.pool import RedisPool
from qo.engines.redis.scripts import ScriptRunner
from qo.errors import NewerFormat, StorageError
from qo.model import Filter, complete
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id
from tests.engines.redis_engines import opened, write_format_2, write_format_3
from tests.servers.redis import Server

names = count()
SIZE = 300  # more than Redis keeps in one piece, so that a scan takes several steps


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def client(redis_server: Server) -> Iterator[Redis]:
    with Redis(port=redis_server.port) as client:
        yield client


@pytest.fixture
def url(redis_server: Server) -> str:
    return f"{redis_server.url}?prefix=migration{next(names)}"


def tag_of(engine: RedisEngine) -> str:
    return f"{{{engine.address.prefix}}}:"


@pytest.mark.parametrize("format_", [2, 3])
async def test_a_queue_of_an_earlier_format_is_migrated(
    url: str, client: Redis, clock: ManualClock, format_: int
) -> None:
    """Before format 4 ready tasks were ids. Before format 3 there were no heads, and one set of all lanes."""
    async with opened(url, clock) as engine:
        await engine.add([new(n, type=f"t{n % 3}") for n in range(9)] + [new("later", delay=60.0)])
        await engine.apply([complete(task, b"1") for task in await claim(engine, limit=2)])
        tag = tag_of(engine)
    (write_format_2 if format_ == 2 else write_format_3)(client, tag)
    async with opened(url, clock) as engine:
        assert client.hmget(f"{tag}format", "format", "since", "migrating") == [b"4", b"4", None]
        assert not client.exists(f"{tag}lanes", f"{tag}lanes:tag")
        assert sum((await engine.count()).values()) == len(await engine.find(Filter(), limit=99)) == 10
        assert [task.id for task in await claim(engine, limit=9)] == [task_id(n) for n in range(2, 9)]
        clock.advance(60)
        assert [task.id for task in await claim(engine)] == [task_id("later")]


async def qo(url: str, *args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, ["--url", url, *args])


async def test_looking_at_a_queue_of_an_earlier_format_migrates_nothing(
    url: str, client: Redis, clock: ManualClock
) -> None:
    assert "nothing to migrate" in (await qo(url, "migrate", "--check")).stdout
    async with opened(url, clock) as engine:
        await engine.add([new(1)])
        tag = tag_of(engine)
    write_format_3(client, tag)
    before = client.hgetall(f"{tag}format")
    checked = await qo(url, "migrate", "--check")
    assert (checked.exit_code, "run qo migrate" in checked.stdout) == (1, True)
    assert "run qo migrate" in (await qo(url, "doctor")).stdout
    assert client.hgetall(f"{tag}format") == before
    assert "migrated from schema 3 to 4" in (await qo(url, "migrate")).stdout
    assert (await qo(url, "migrate", "--check")).exit_code == 0


@pytest.mark.parametrize("format_", [2, 3])
async def test_an_interrupted_migration_is_continued_by_the_next_process(
    url: str, client: Redis, clock: ManualClock, format_: int
) -> None:
    async with opened(url, clock) as earlier:
        await earlier.add([new(n) for n in range(SIZE)])
        tag = tag_of(earlier)
        for key in client.scan_iter(f"{tag}ready:*"):  # equal ranks: a converted member moves among the others
            members: Any = client.zrange(key, 0, -1)
            client.zadd(key, dict.fromkeys(members, clock()))
        (write_format_2 if format_ == 2 else write_format_3)(client, tag)
        with pytest.raises(StorageError, match="qo migrate"):
            await claim(earlier)
        pool = RedisPool(earlier.address)
        scripts = ScriptRunner(pool, earlier.address.prefix)
        await scripts.begin_migration()
        lanes: Any = client.smembers(f"{tag}lanes") - {b'["q","gone",[],6]'} or client.hkeys(f"{tag}head")
        (lane,) = lanes
        _, cursor = await scripts.run("migrate", "convert", 20, "0", lane)
        await pool.close()
        assert cursor != b"0"
        ready: Any = client.zrange(f"{tag}ready:{lane.decode()}", 0, -1)
        sizes = Counter(map(len, ready))
        assert 0 < sizes[44] < 100 < sizes[36], "a step converts a limited part"
        assert client.hget(f"{tag}format", "since") == b"4", "older builds are refused from the beginning"
        for attempt in (claim(earlier), earlier.add([new("a"), new("b")])):
            with pytest.raises(StorageError, match="qo migrate") as refused:
                await attempt
            assert not isinstance(refused.value, NewerFormat)
        async with opened(url, clock) as engine:
            assert client.hget(f"{tag}format", "migrating") is None
            assert [task.id for task in await claim(engine, limit=SIZE)] == [task_id(n) for n in range(SIZE)]
        assert await claim(earlier) == []
        await earlier.add([new("a")])
