"""An engine on the test server, for the files that test Postgres: fixtures, its pool, and what doctor finds."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from qo.engines import examine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.postgres.pool import PostgresPool
from qo.testing import ManualClock
from qo.testing.samples import claim_request
from tests.servers.postgres import PostgresServer, url

__all__ = ["url"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, url: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(address_of(url), clock)
    await engine.open()
    yield engine
    await engine.close()


def empty(postgres: PostgresServer, schema: str) -> None:
    """Remove all rows of a schema but its version."""
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'schema_version'"
        names = [sql.Identifier(schema, name) for (name,) in db.execute(tables, (schema,))]
        db.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(names)))


def pool(engine: PostgresEngine) -> PostgresPool:
    return engine.opened().pool


async def wrong(url: str) -> list[str]:
    return [finding.detail for finding in await examine(url) if finding.ok is False]


async def until_claimed(engine: PostgresEngine) -> list[Any]:
    asked = claim_request()
    while not (tasks := await engine.claim(asked)):
        await engine.wait(asked, 60)
    return tasks
