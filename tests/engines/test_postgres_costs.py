"""A statement costs the same however many tasks the queue holds."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from qo.engines import open_engine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.reader import query
from qo.engines.postgres.rows import (
    AddBatch,
    change_parameters,
    claim_parameters,
    completion_parameters,
)
from qo.engines.postgres.statements import fill, statement
from qo.model import Filter, PendingKind, Position, Status, cancel, complete, fail, release
from qo.testing.samples import claim, claim_request, new, task_id
from tests.engines.postgres_engines import clock, engine, pool, url
from tests.servers.postgres import PostgresServer
from tests.web.serving import served

__all__ = ["clock", "engine", "url"]  # fixtures


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
    Filter(statuses=(Status.PENDING,), pending=(PendingKind.SCHEDULED, PendingKind.RETRYING)),
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
    table, schema = engine.opened().table, "test"
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
        (statement("change", schema), change_parameters(changes, {}) | stamp),
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
    now = engine.opened().table.now()
    asked = claim_parameters(claim_request(types=("t",))) | {"now": now, "is_staged": False}
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


def test_metrics_and_the_overview_work_with_a_deep_queue(url: str) -> None:
    with served(open_engine(url)) as api:
        api.run(api.qo_client.submit_many([api.qo_client.new_task("t", b"null") for _ in range(1000)]))
        for path in ("/metrics", "/api/v1/dashboard/overview"):
            answer = api.client.get(path)
            assert answer.status_code == 200, answer.text
