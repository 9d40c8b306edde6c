"""The cost of claims, searches and submits does not grow with what is stored."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from qo.engines.sqlite import SqliteEngine
from qo.model import Filter, PendingKind, Position, Status, after_error, complete
from qo.sqlite_tables.reader import SqliteReader
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, task_id
from tests.engines.sqlite_engines import clock, connection, engine, statements

__all__ = ["clock", "engine"]  # fixtures


async def claim_steps(engine: SqliteEngine) -> int:
    with statements(connection(engine)) as seen:
        assert len(await claim(engine, types=("t",), limit=10)) == 10
    return sum(steps for _, steps in seen)


async def test_a_claim_costs_the_same_at_any_depth(engine: SqliteEngine) -> None:
    await engine.add([new(n) for n in range(100)])
    await claim_steps(engine)
    shallow = await claim_steps(engine)
    await engine.add([new(1_000 + n) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    await engine.add([new(100_000 + n, delay=3600.0, priority=0) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    await engine.add([new(200_000 + n, type="foreign", priority=0) for n in range(20_000)])
    assert await claim_steps(engine) < 1.5 * shallow
    with statements(connection(engine, 2)) as seen:
        await engine.wait(claim_request(types=("t",)), 0)
    assert sum(steps for _, steps in seen) < shallow


def plan(db: apsw.Connection, sql: str, values: tuple[Any, ...]) -> str:
    return "\n".join(row[3] for row in db.execute("EXPLAIN QUERY PLAN " + sql, values))


@pytest.mark.parametrize(
    ("where", "indexes"),
    [
        (Filter(), ["tasks_listed"]),
        (Filter(queues=("q",)), ["tasks_listed"]),
        (Filter(statuses=(Status.FAILED,)), ["tasks_finished (status=?"]),
        (Filter(statuses=(Status.RUNNING,)), ["tasks_leased"]),
        (Filter(statuses=(Status.PENDING,)), ["tasks_ready", "tasks_coming"]),
        (Filter(statuses=(Status.PENDING,), pending=(PendingKind.RETRYING,)), ["tasks_coming"]),
        (Filter(statuses=(Status.RUNNING, Status.ARCHIVED)), ["tasks_leased", "tasks_finished (status=?"]),
        (Filter(expired_for=5.0), ["tasks_leased (lease_expires_at<?)"]),
        (Filter(finished_for=5.0), ["tasks_finished (status=? AND created_at<?)"]),
    ],
)
async def test_a_search_uses_the_index_made_for_it(engine: SqliteEngine, where: Filter, indexes: list[str]) -> None:
    reading = SqliteReader(connection(engine, 1))
    sql, values = reading.query(where, 10, None, 1e9)
    used = plan(connection(engine, 1), sql, values)
    assert all(index in used for index in indexes), used
    assert "SCAN tasks\n" not in used + "\n", used
    later, values = reading.query(where, 10, Position(1.5, task_id(0)), 1e9)
    assert all(index.partition(" ")[0] in plan(connection(engine, 1), later, values) for index in indexes)


async def test_a_page_of_finished_tasks_costs_the_same_at_any_depth(engine: SqliteEngine, clock: ManualClock) -> None:
    async def finish(start: int, size: int) -> None:
        await engine.add([new(start + n) for n in range(size)])
        await engine.apply([complete(task) for task in await claim(engine, limit=size)])
        clock.advance(10)

    async def steps(where: Filter) -> int:
        with statements(connection(engine, 1)) as seen:
            assert len(await engine.find(where, limit=10)) == 10
        return sum(steps for _, steps in seen)

    await finish(0, 50)
    questions = [Filter(finished_for=5.0), Filter(statuses=(Status.COMPLETED,)), Filter()]
    shallow = [await steps(where) for where in questions]
    await finish(1_000, 5_000)
    for where, before in zip(questions, shallow, strict=True):
        assert await steps(where) < 1.5 * before


async def test_searches_find_the_same_with_few_and_many_pending_tasks(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.add([new(n, delay=float(n % 2)) for n in range(9)])
    await engine.apply([complete(await claim_one(engine)), after_error(await claim_one(engine), "e", random=0.5)])
    where = Filter(statuses=(Status.PENDING, Status.COMPLETED))
    few = await engine.find(where, limit=6)
    monkeypatch.setattr("qo.sqlite_tables.reader._MANY_PENDING", 0)
    assert few == await engine.find(where, limit=6)
    assert len(few) == 6


async def test_a_submit_writes_few_pages_and_runs_few_statements(engine: SqliteEngine, tmp_path: Path) -> None:
    """The task, its three index entries, its first event and the count. Its lane changes only if it comes first."""
    await engine.add([new("first")])
    before = (tmp_path / "qo.db-wal").stat().st_size
    with statements(connection(engine)) as seen:
        for n in range(50):
            await engine.add([new(n)])
    assert len(seen) == 6 * 50
    assert (tmp_path / "qo.db-wal").stat().st_size - before < 6.5 * 50 * 4120


async def test_a_submit_from_plain_code_writes_one_page(engine: SqliteEngine, tmp_path: Path) -> None:
    """The task. Every 17th one begins a new page, which also changes the root of the table and the file's header."""
    await engine.add([new("first")])
    engine.add_directly([new("second")])
    before = (tmp_path / "qo.db-wal").stat().st_size
    for n in range(50):
        engine.add_directly([new(n)])
    assert (tmp_path / "qo.db-wal").stat().st_size - before < 1.3 * 50 * 4120
