"""A schema of an earlier qo is migrated when it is opened, and nothing in it is lost."""

import asyncio
from importlib.resources import files

import psycopg

from qo.engines import examine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.postgres.statements import fill
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id
from tests.conditions import until
from tests.engines.upgraded_store import check_lanes, check_reports
from tests.servers.postgres import PostgresServer, url

__all__ = ["url"]  # a fixture


def make_old(place: str) -> None:
    """Create the first schema, in which a lane has tasks of all priorities."""
    with psycopg.connect(place, autocommit=True) as db:
        db.execute("CREATE SCHEMA test; CREATE TABLE test.schema_version (version integer PRIMARY KEY)")
        db.execute("INSERT INTO test.schema_version VALUES (1)")
        db.execute(fill(files("qo.engines.postgres").joinpath("schema/0001.sql").read_text("utf-8"), "test"))
        db.execute("INSERT INTO test.lanes (queue, type, needs) VALUES ('q', 't', '{}'), ('q', 'u', '{gpu}')")
        for n in range(20):
            lane, rank = 1 + n // 10, 200.0 * (n % 10)
            db.execute(
                "INSERT INTO test.tasks (id, submit_id, available_at, rank, created_at, updated_at, pended_at, timeout,"
                " lane, version, max_retries, priority, status, payload)"
                " VALUES (%s, 1, 0, %s, 0, 0, 0, 300, %s, 1, 3, %s, 'pending', '1')",
                (task_id(n), rank, lane, n % 10),
            )
            db.execute("INSERT INTO test.ready VALUES (%s, %s, %s, 1)", (rank, task_id(n), lane))
        db.execute("INSERT INTO test.tally VALUES (1, 77, 'pending', 10), (2, 78, 'pending', 10)")


async def test_a_lane_of_all_priorities_becomes_one_lane_per_priority(postgres: PostgresServer, url: str) -> None:
    make_old(postgres.url())
    await check_lanes(PostgresEngine(address_of(url), ManualClock()))
    findings = await examine(url)
    assert not [finding for finding in findings if finding.ok is False], findings


async def test_tasks_of_tables_without_batches_and_logs_get_them(postgres: PostgresServer, url: str) -> None:
    make_old(postgres.url())
    await check_reports(PostgresEngine(address_of(url), ManualClock()))


async def test_a_migration_is_retried_after_a_deadlock_with_an_older_worker(postgres: PostgresServer, url: str) -> None:
    engine = PostgresEngine(address_of(url), ManualClock())
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as watching:
        await watching.execute("CREATE SCHEMA test; CREATE TABLE test.schema_version (version integer PRIMARY KEY)")
        for step in range(1, 10):
            text = files("qo.engines.postgres").joinpath(f"schema/{step:04}.sql").read_text("utf-8")
            await watching.execute(fill(text, "test"))
            await watching.execute("INSERT INTO test.schema_version (version) VALUES (%s)", (step,))
        async with await psycopg.AsyncConnection.connect(postgres.url()) as worker:
            await worker.execute(
                "SET deadlock_timeout = '10min'"
            )  # so that Postgres cancels the migration, not the worker
            await worker.execute("LOCK TABLE test.ready IN ROW EXCLUSIVE MODE")
            opening = asyncio.create_task(engine.open())
            waits = "SELECT 1 FROM pg_locks WHERE relation = 'test.ready'::regclass AND NOT granted"

            async def is_waiting() -> bool:
                return (await watching.execute(waits)).rowcount > 0

            await until(is_waiting)
            await worker.execute("LOCK TABLE test.tasks IN ROW EXCLUSIVE MODE")
            await worker.commit()
    await opening
    try:
        await engine.add([new(1)])
        assert [task.id for task in await claim(engine)] == [task_id(1)]
    finally:
        await engine.close()
