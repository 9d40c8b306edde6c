import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.postgres.pool import PostgresPool
from qo.errors import InvalidSetting, OutcomeUnknown, Refused, StorageError
from qo.model import after_error, archive, cancel, complete, fail
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, task_id
from tests.engines.damage import damage_postgres
from tests.engines.postgres_engines import clock, empty, engine, pool, until_claimed, url, wrong
from tests.servers.postgres import PostgresServer, postgres_server

__all__ = ["clock", "engine", "url"]  # fixtures


class TestPostgres(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, postgres: PostgresServer) -> AsyncIterator[PostgresEngine]:
        """On one schema for all tests: creating one takes longer than most tests."""
        engine = PostgresEngine(address_of(f"{postgres.url()}?schema=contract"), clock)
        await engine.open()
        empty(postgres, "contract")
        yield engine
        await engine.close()

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_postgres(engine, task_id, "retry = '{\"half'")


# --- the address


def test_a_url_names_a_server_and_a_schema() -> None:
    address = address_of("postgresql://me:s3cret@db.example:5433/app?schema=jobs&sslmode=require")
    assert (address.schema, address.shown_url) == ("jobs", "postgresql://db.example:5433/app")
    assert "sslmode=require" in address.conninfo and "schema" not in address.conninfo
    assert address_of("postgres:///app").schema == "qo"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:s3cret@host/app?shema=x", "shema"),
        ("postgresql://me:s3cret@host/app?schema=Drop%20Table", "not a name"),
    ],
)
def test_an_invalid_url_is_refused_without_showing_the_password(url: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says) as refusal:
        open_engine(url)
    assert "s3cret" not in str(refusal.value)


# --- opening


async def test_an_unreachable_server_is_a_storage_error_without_the_password() -> None:
    engine = open_engine("postgresql://me:s3cret@127.0.0.1:1/app")
    with pytest.raises(StorageError, match="cannot be reached") as refusal:
        await engine.open()
    assert "s3cret" not in str(refusal.value)
    assert not isinstance(refusal.value, OutcomeUnknown)
    (finding,) = await examine("postgresql://me:s3cret@127.0.0.1:1/app")
    assert finding.ok is False and "s3cret" not in finding.detail


async def test_a_refused_connection_says_what_to_correct(postgres: PostgresServer) -> None:
    for address, says in (
        (postgres.url("nowhere"), "there is no such database; create it"),
        (postgres.url().replace("qo@", "stranger@"), "the server rejected the user; check the name"),
        (f"{postgres.url()}?sslmode=bogus", "an option of the URL is not valid"),
        ("postgresql://127.0.0.1:99999/x", "an option of the URL is not valid"),
    ):
        with pytest.raises(Refused, match=says):
            await open_engine(address).open()


async def test_a_call_to_an_engine_that_is_not_open_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match="open"):
        await open_engine(url).count()


async def test_a_newer_schema_is_refused(engine: PostgresEngine, url: str) -> None:
    await pool(engine).execute("INSERT INTO test.schema_version VALUES (99)", {})
    with pytest.raises(StorageError, match="newer qo"):
        await open_engine(url).open()
    assert any("newer qo" in detail for detail in await wrong(url))


async def test_a_schema_of_another_application_is_not_changed(postgres: PostgresServer, url: str) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("CREATE SCHEMA test; CREATE TABLE test.tasks (mine int)")
        with pytest.raises(StorageError, match="another application"):
            await open_engine(url).open()
        assert db.execute("SELECT to_regclass('test.lanes')").fetchone() == (None,)


async def test_a_user_without_the_right_to_create_learns_what_to_grant(postgres: PostgresServer, url: str) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    guest = url.replace("qo@", "guest@")
    with pytest.raises(StorageError, match="grant"):
        await open_engine(guest).open()
    assert any("may not create" in detail for detail in await wrong(guest))


# --- claims


async def test_many_tasks_that_become_due_at_once_are_all_made_ready(
    engine: PostgresEngine, clock: ManualClock
) -> None:
    await engine.add([new(n, delay=5.0, priority=n % 9) for n in range(2_500)])
    clock.advance(5)
    assert len(await claim(engine, limit=3_000)) == 2_500


async def test_a_task_that_another_transaction_has_locked_is_skipped(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    await engine.add([new(0), new(1), new(2, delay=1.0)])
    with psycopg.connect(postgres.url()) as db:
        db.execute("SELECT FROM test.tasks WHERE id = ANY (%s::uuid[]) FOR UPDATE", ([task_id(0), task_id(2)],))
        assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert [task.id for task in await claim(engine)] == [task_id(0)]


async def test_an_index_entry_of_an_older_version_is_ignored_and_removed(
    engine: PostgresEngine, clock: ManualClock
) -> None:
    await engine.add([new(0), new(1, delay=5.0)])
    await pool(engine).execute(
        "INSERT INTO test.ready (rank, created_at, id, lane, version, lane_group, weight)"
        " SELECT rank - 1, created_at, id, lane, version + 5, 1, 0 FROM test.tasks",
        {},
    )
    await pool(engine).execute("INSERT INTO test.coming SELECT available_at, id, version + 5 FROM test.tasks", {})
    assert [task.id for task in await claim(engine)] == [task_id(0)]
    clock.advance(5)
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert await claim(engine) == []
    left = "SELECT (SELECT count(*) FROM test.ready), (SELECT count(*) FROM test.coming)"
    assert await pool(engine).execute(left, {}) == [(0, 0)]


async def test_a_cancelled_claim_releases_its_tasks(engine: PostgresEngine) -> None:
    await engine.add([new()])
    claiming = asyncio.create_task(claim(engine))
    await asyncio.sleep(0)  # the claim has begun
    await asyncio.sleep(0)
    claiming.cancel()
    await asyncio.wait([claiming])
    while not (tasks := await claim(engine)):  # the task is released in the background
        await engine.wait(claim_request(), 1.0)
    assert [task.failures for task in tasks] == [0]


async def test_leases_are_deleted_once_their_tasks_are_settled(engine: PostgresEngine, url: str) -> None:
    await engine.add([new(n) for n in range(9)])
    first = await claim(engine, limit=5)
    await engine.apply([complete(task) for task in first[:3]])
    await engine.apply([after_error(first[3], "e", random=0.5), cancel(first[4].id)])
    second = await claim(engine, limit=2)
    assert await pool(engine).execute("SELECT lease_id, remaining FROM test.leases", {}) == [(second[0].lease_id, 2)]
    assert await wrong(url) == []


# --- counts


async def test_counts_of_many_connections_are_folded(engine: PostgresEngine) -> None:
    await engine.add([new(n) for n in range(9)])
    await pool(engine).execute(
        "INSERT INTO test.tally (slot, lane, status, count)"
        " SELECT -s.n, lanes.n, 'pending', 1 FROM generate_series(1, 3000) AS s (n), test.lanes",
        {},
    )
    before = await engine.count()
    assert sum(before.values()) == 3_009
    ((rows,),) = await pool(engine).execute("SELECT count(*) FROM test.tally", {})
    assert rows < 10
    assert await engine.count() == before


# --- waiting


async def test_waiting_after_an_empty_claim_sends_no_statement(
    engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, statements = claim_request(), list[str]()
    await _listening(engine)
    assert await engine.claim(asked) == []
    execute = PostgresPool.execute

    async def counting(self: PostgresPool, sql: str, values: Any) -> Any:
        statements.append(sql)
        return await execute(self, sql, values)

    monkeypatch.setattr(PostgresPool, "execute", counting)
    await engine.wait(asked, 0.01)
    assert statements == []
    await engine.wait(asked, 0.01)  # without a claim in between, it must check
    assert len(statements) == 1


async def _listening(engine: PostgresEngine) -> None:
    watch = engine.opened().watch
    while not watch.is_listening:
        await watch.sleep(watch.notifications, 1.0, None)


async def test_listening_resumes_after_its_connection_was_lost(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    await _listening(engine)
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    working = asyncio.create_task(until_claimed(engine))
    await engine.add([new()])
    assert len(await asyncio.wait_for(working, 30)) == 1
    await asyncio.wait_for(_listening(engine), 30)


async def test_waiting_ends_when_a_task_becomes_due(url: str) -> None:
    engine = PostgresEngine(address_of(url))  # with the server's clock
    await engine.open()
    await engine.add([new(delay=0.2)])
    assert len(await asyncio.wait_for(until_claimed(engine), 30)) == 1
    await engine.close()


# --- a server that comes and goes


async def test_lost_connections_are_replaced(engine: PostgresEngine, postgres: PostgresServer) -> None:
    await asyncio.gather(*(engine.count() for _ in range(5)))
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'qo'")
    assert await engine.add([new()]) == [(task_id(0), True)]
    assert await engine.apply([complete(await claim_one(engine))]) == [True]


async def test_a_call_that_is_cancelled_at_any_moment_leaves_nothing_open(url: str) -> None:
    engine = PostgresEngine(address_of(url))
    await engine.open()
    for steps in range(0, 60, 3):
        opened = engine.opened()
        await opened.pool.close()  # so that the next call connects
        await opened.watch.close()
        calls = [
            asyncio.create_task(started)
            for started in (engine.count(), claim(engine), engine.wait(claim_request(), 60))
        ]
        for _ in range(steps):
            await asyncio.sleep(0)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    late = asyncio.create_task(engine.count())
    await asyncio.sleep(0)
    await engine.close()
    assert await late == {}
    gc.collect()  # an unclosed connection warns when it is collected, and warnings are errors


async def test_a_stopped_server_is_an_error_and_a_restarted_one_is_used_again() -> None:
    with postgres_server() as server:
        engine = PostgresEngine(address_of(server.url()))
        await engine.open()
        await engine.add([new()])
        server.stop()
        with pytest.raises(StorageError, match="cannot be reached"):
            await claim(engine)
        server.start()
        assert len(await claim(engine)) == 1
        await engine.close()


# --- the doctor


async def test_the_doctor_finds_no_problem_in_a_sound_database(engine: PostgresEngine, url: str) -> None:
    await engine.add([new(n) for n in range(5)] + [new(9, delay=60.0)])
    tasks = await claim(engine, limit=3)
    await engine.apply([complete(tasks[0]), fail(tasks[1], "e")])
    await engine.apply([archive(tasks[1].id)])
    findings = await examine(url)
    assert [finding for finding in findings if not finding.ok] == []
    assert {"server", "version", "clock", "durability", "schema", "privileges", "counts", "indexes"} <= {
        finding.name for finding in findings
    }


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("UPDATE test.tally SET count = count + 1", "2 wrong counts of tasks"),
        ("DELETE FROM test.ready", "missing from the index"),
        ("DELETE FROM test.leases", "missing from the index"),
    ],
)
async def test_the_doctor_finds_wrong_counts_and_missing_index_entries(
    engine: PostgresEngine, url: str, damage: str, says: str
) -> None:
    await engine.add([new(0), new(1)])
    await claim_one(engine)
    await pool(engine).execute(damage, {})
    (detail,) = await wrong(url)
    assert says in detail


async def test_the_doctor_reports_a_queue_that_does_not_exist_yet(url: str) -> None:
    (schema,) = [finding for finding in await examine(url) if finding.name == "schema"]
    assert schema.ok is None and "no queue" in schema.detail
