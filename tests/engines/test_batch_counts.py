"""A list counts a hundred batches at the same time. Other calls of the engine must not wait for all of them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from redis import Redis

from qo.engine import Engine
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of
from qo.engines.memory import MemoryEngine
from qo.engines.postgres import PostgresEngine
from qo.engines.redis.archive import PostgresArchive
from qo.engines.redis.archived_engine import ArchivingEngine
from qo.model import Counts
from qo.testing.samples import claim_one, new
from tests.conditions import TIMEOUT, until
from tests.engines.http_server import Server as HttpServer
from tests.engines.http_server import server
from tests.engines.postgres_engines import clock, engine, url
from tests.engines.redis_engines import fresh, opened
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server

__all__ = ["clock", "engine", "url"]  # fixtures

BATCHES = 100


@pytest.fixture(scope="module")
def served() -> Iterator[HttpServer]:
    with server() as running:
        yield running


def count_all(engine: Engine) -> list[asyncio.Task[Counts]]:
    return [asyncio.create_task(engine.count(f"b{n}")) for n in range(BATCHES)]


async def totals(counts: list[asyncio.Task[Counts]]) -> set[int]:
    return {sum(found.values()) for found in await asyncio.gather(*counts)}


async def test_counts_leave_connections_of_postgres_to_other_calls(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    await engine.add([new(n, batch=f"b{n}") for n in range(BATCHES)])
    blocked = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%.tasks WHERE batch%'"
    with psycopg.connect(postgres.url(), autocommit=True) as db, psycopg.connect(postgres.url()) as holder:
        holder.execute("LOCK TABLE test.tasks IN ACCESS EXCLUSIVE MODE")
        counts = count_all(engine)
        await until(lambda: db.execute(blocked).rowcount == 2)
        async with asyncio.timeout(TIMEOUT):
            assert await engine.read_note("unknown") is None
    assert await totals(counts) == {1}


async def test_counts_use_few_connections_to_redis(redis_server: Server) -> None:
    async with opened(fresh(redis_server)) as engine:
        await engine.add([new(n, batch=f"b{n}") for n in range(BATCHES)])
        with Redis.from_url(redis_server.url) as client:
            before = connections(client)
            assert await totals(count_all(engine)) == {1}
            assert connections(client) - before <= 2


def connections(client: Redis) -> int:
    stats: Any = client.info("stats")
    return int(stats["total_connections_received"])


async def test_a_submission_does_not_wait_for_all_counts_of_an_archive(
    redis_server: Server, postgres: PostgresServer
) -> None:
    async with opened(fresh(redis_server)) as redis:
        archive = PostgresArchive(postgres.url(), redis.address.prefix)
        engine = ArchivingEngine(redis, archive, lambda: 0.0)
        await archive.open()
        try:
            await engine.add([new(n, batch=f"b{n}") for n in range(BATCHES)])
            counts = count_all(engine)
            await asyncio.sleep(0)
            await engine.add([new(BATCHES)])
            assert sum(count.done() for count in counts) < 10
            assert await totals(counts) == {1}
        finally:
            await archive.close()


class Gated(MemoryEngine):
    """Its counts of batches wait for `gate`, which belongs to the event loop of the server."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.waiting = 0

    async def count(self, batch: str | None = None) -> Counts:
        self.waiting += 1
        await self.gate.wait()
        return await super().count(batch)

    async def let_go(self) -> None:
        self.gate.set()


async def test_counts_leave_connections_of_http_to_claims(served: HttpServer) -> None:
    store = Gated()
    async with served.serving(store):
        engine = HttpEngine(address_of(served.url))
        await engine.open()
        try:
            await engine.add([new(n, batch=f"b{n}") for n in range(BATCHES)])
            counts = count_all(engine)
            await until(lambda: store.waiting == 32)
            async with asyncio.timeout(TIMEOUT):
                assert (await claim_one(engine)).batch == "b0"
            await served.there(store.let_go())
            assert await totals(counts) == {1}
        finally:
            await engine.close()
