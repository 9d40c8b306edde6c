import asyncio
import gc
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from qo import App
from qo.client import connect
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.postgres.parameters import (
    AddBatch,
    change_parameters,
    claim_parameters,
    completion_parameters,
)
from qo.engines.postgres.pool import PostgresPool
from qo.engines.postgres.reader import query
from qo.engines.postgres.statements import fill, statement
from qo.errors import InvalidSetting, OutcomeUnknown, StorageError
from qo.model import Filter, Position, Status, after_error, archive, cancel, complete, fail, release
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.engines.damage import damage_postgres
from tests.servers.postgres import PostgresServer, postgres_server, url
from tests.web.serving import served

__all__ = ["url"]  # a fixture


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, url: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(address_of(url), clock)
    await engine.open()
    yield engine
    await engine.close()


class TestPostgres(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, url: str) -> AsyncIterator[PostgresEngine]:
        engine = PostgresEngine(address_of(url), clock)
        await engine.open()
        yield engine
        await engine.close()

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_postgres(engine, task_id, "retry = '{\"half'")


def pool(engine: PostgresEngine) -> PostgresPool:
    assert engine._open_engine is not None
    return engine._open_engine.pool


async def wrong(url: str) -> list[str]:
    return [finding.detail for finding in await examine(url) if finding.ok is False]


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


# --- the same cost at any depth


@contextmanager
def _analyzed(db: psycopg.Connection[Any], *, late: bool) -> Iterator[None]:
    """Analyze the tables before they are filled, and with `late` again afterwards."""
    for table in ("tasks", "ready", "coming", "leases", "events"):
        db.execute(f"ALTER TABLE test.{table} SET (autovacuum_enabled = false); ANALYZE test.{table}")
    yield
    if late:
        db.execute("ANALYZE test.tasks, test.ready, test.coming, test.leases, test.events")


async def plan(engine: PostgresEngine, sql: str, values: dict[str, Any], how: str = "EXPLAIN") -> str:
    return "\n".join(row[0] for row in await pool(engine).execute(f"{how} {sql}", values))


FILTERS = [
    Filter(),
    Filter(statuses=(Status.PENDING,)),
    Filter(statuses=(Status.PENDING,), queues=("q",), types=("t",)),
    Filter(statuses=(Status.COMPLETED,)),
    Filter(statuses=(Status.FAILED, Status.RUNNING)),
    Filter(expired_for=1.0),
    Filter(finished_for=1.0, statuses=(Status.ARCHIVED, Status.COMPLETED)),
    Filter(worker_id="w1"),
]


@pytest.mark.parametrize("late", [True, False], ids=["fresh statistics", "stale statistics"])
async def test_no_statement_reads_a_whole_table(
    engine: PostgresEngine, postgres: PostgresServer, *, late: bool
) -> None:
    with psycopg.connect(postgres.url(), autocommit=True) as db, _analyzed(db, late=late):
        for start in range(0, 50_000, 5_000):
            await engine.add([new(start + n, delay=n % 2 * 60.0) for n in range(5_000)])
        tasks = await claim(engine, limit=3_000)
        await engine.apply([complete(task) if n % 2 else fail(task, "e") for n, task in enumerate(tasks[:2_000])])
    table, schema = engine._open_engine.table, "test"  # type: ignore[union-attr]
    stamp = {"now": table.now(), "channel": "c"}
    asked = claim_parameters(claim_request()) | stamp | {"is_staged": False}
    batch = [new(n, idempotency_key="k") for n in range(99)]
    changes = [cancel(task_id(n)) for n in range(99)] + [release(tasks[-1])]
    statements: list[tuple[str, dict[str, Any]]] = [
        (statement("claim", schema), asked),
        (statement("claim_any", schema), asked),
        (statement("claimable", schema), asked),
        (statement("held_under", schema), asked),
        (statement("stage", schema), {"now": 1e9, "step": 1000}),
        (
            statement("add", schema),
            AddBatch(batch).parameters(await table.lanes.make(AddBatch(batch).lanes())) | stamp | {"submit_id": 1},
        ),
        (statement("complete", schema), completion_parameters([complete(task) for task in tasks[-9:]]) | stamp),
        (statement("change", schema), change_parameters(changes) | stamp),
    ]
    for where in FILTERS:
        for many in (True, False):
            sql, values = query(where, 50, Position(1e9, task_id(1)), has_many_pending=many)
            statements.append((fill(sql, schema), values | stamp))
    for sql, values in statements:
        text = await plan(engine, sql, values)
        assert not re.search(r"Seq Scan on (tasks|ready|coming|events)", text), text


async def _blocks(engine: PostgresEngine) -> int:
    """The pages that a claim of ten tasks reads. It is committed, so the next one reads its dead rows too."""
    asked = claim_parameters(claim_request(types=("t",))) | {"now": engine._open_engine.table.now(), "is_staged": False}  # type: ignore[union-attr]
    text = await plan(engine, statement("claim", "test"), asked, "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF)")
    assert re.search(r"rows=10(\.00)? ", text.splitlines()[0])
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", text.split("CTE", 1)[0]))


async def test_a_claim_costs_the_same_at_any_depth(engine: PostgresEngine) -> None:
    await engine.add([new(n) for n in range(100)])
    await _blocks(engine)
    shallow = await _blocks(engine)
    for start in range(0, 20_000, 5_000):
        await engine.add([new(1_000 + start + n) for n in range(5_000)])
        await engine.add([new(100_000 + start + n, delay=3600.0, priority=0) for n in range(5_000)])
        await engine.add([new(200_000 + start + n, type="foreign", priority=0) for n in range(5_000)])
    assert await _blocks(engine) < 2 * shallow  # one more level in each index


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


# --- transactional enqueue


@pytest.mark.parametrize("commits", [True, False])
async def test_a_task_exists_if_and_only_if_the_caller_commits(
    engine: PostgresEngine, postgres: PostgresServer, url: str, *, commits: bool
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        assert await engine.add_on(callers, [new(0), new(1)]) == [(task_id(0), True), (task_id(1), True)]
        assert await claim(engine) == []
        await engine.add([new(2)])  # an open transaction blocks no other writer
        assert [task.id for task in await claim(engine)] == [task_id(2)]
        await (callers.commit() if commits else callers.rollback())
    assert len(await claim(engine)) == (2 if commits else 0)
    assert sum((await engine.count()).values()) == (3 if commits else 1)
    assert await wrong(url) == []


async def test_a_blocking_connection_can_be_used(engine: PostgresEngine, postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url()) as callers:
        callers.execute("CREATE TEMPORARY TABLE mine (n int)")
        assert await engine.add_on(callers, [new(0)]) == [(task_id(0), True)]
        assert await engine.add_on(callers, [new(0)]) == [(task_id(0), False)]
        assert await engine.add_on(callers, []) == []
    assert (await stored(engine)).status is Status.PENDING


async def test_waiting_ends_when_the_callers_transaction_commits(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    async with await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        await engine.add_on(callers, [new()])
        working = asyncio.create_task(_until_claimed(engine))
        await callers.commit()
    assert len(await asyncio.wait_for(working, 30)) == 1


async def _until_claimed(engine: PostgresEngine) -> list[Any]:
    asked = claim_request()
    while not (tasks := await engine.claim(asked)):
        await engine.wait(asked, 60)
    return tasks


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
    watch = engine._open_engine.watch  # type: ignore[union-attr]
    while not watch._is_listening:
        await watch.sleep(watch.notifications, 1.0, None)


async def test_listening_resumes_after_its_connection_was_lost(
    engine: PostgresEngine, postgres: PostgresServer
) -> None:
    await _listening(engine)
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
    working = asyncio.create_task(_until_claimed(engine))
    await engine.add([new()])
    assert len(await asyncio.wait_for(working, 30)) == 1
    await asyncio.wait_for(_listening(engine), 30)


async def test_waiting_ends_when_a_task_becomes_due(url: str) -> None:
    engine = PostgresEngine(address_of(url))  # with the server's clock
    await engine.open()
    await engine.add([new(delay=0.2)])
    assert len(await asyncio.wait_for(_until_claimed(engine), 30)) == 1
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
        opened = engine._opened()
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
        ("UPDATE test.tally SET count = count + 1", "counts differ"),
        ("DELETE FROM test.ready", "missing from their index"),
        ("DELETE FROM test.leases", "missing from their index"),
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


# --- a task in the caller's own transaction, as an application writes it


async def test_a_queue_enqueues_in_the_callers_transaction(postgres: PostgresServer, url: str) -> None:
    async with connect(url) as queue, await psycopg.AsyncConnection.connect(postgres.url()) as callers:
        kept = await queue.enqueue("t", {"n": 1}, connection=callers)
        assert await queue.get(kept.id) is None  # invisible before the commit
        await callers.commit()
        lost = await queue.enqueue("t", {"n": 2}, connection=callers)
        await callers.rollback()
        assert await queue.get(kept.id) is not None
        assert await queue.get(lost.id) is None


def test_an_app_enqueues_in_the_callers_transaction(postgres: PostgresServer, url: str) -> None:
    app = App(url)

    @app.task
    def charge(amount: int) -> int:
        return amount

    with psycopg.connect(postgres.url()) as callers:
        kept = charge.using(connection=callers).enqueue(1)
        callers.commit()
        lost = charge.using(connection=callers).enqueue(2)
        callers.rollback()
    assert app.get(kept.id) is not None
    assert app.get(lost.id) is None
    app.close()


async def test_a_store_without_transactions_refuses_a_connection() -> None:
    async with connect("memory://") as queue:
        with pytest.raises(InvalidSetting, match="requires a postgresql:// store"):
            await queue.enqueue("t", connection=object())


def test_metrics_and_the_overview_work_with_a_deep_queue(url: str) -> None:
    with served(open_engine(url)) as api:
        api.run(api.queue.submit_many([api.queue.new_task("t", b"null") for _ in range(1000)]))
        for path in ("/metrics", "/api/v1/dashboard/overview"):
            answer = api.client.get(path)
            assert answer.status_code == 200, answer.text
