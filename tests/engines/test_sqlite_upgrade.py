"""A file of an earlier qo is migrated when it is opened, and nothing in it is lost."""

from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.doctor import examine
from qo.model import CountKey, Filter, Status
from qo.sqlite_tables.header import APPLICATION_ID
from qo.sqlite_tables.migrations import migrate
from qo.testing import ManualClock
from qo.testing.samples import claim, task_id
from tests.engines.upgraded_store import check_lanes, check_reports


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Create the first schema, in which a lane has tasks of all priorities."""
    path = tmp_path / "old.db"
    db = apsw.Connection(str(path))
    db.execute(files("qo.sqlite_tables").joinpath("schema", "0001.sql").read_text("utf-8"))
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1")
    db.execute("INSERT INTO lanes VALUES (1, 'q', 't', '[]'), (2, 'q', 'u', '[\"gpu\"]')")
    for n in range(20):
        db.execute(
            "INSERT INTO tasks (n, id, lane, status, ready, available_at, rank, version, created_at, updated_at,"
            " priority, timeout, max_retries, payload) VALUES (?, ?, ?, 'pending', 1, 0, ?, 1, 0, 0, ?, 300, 3, x'31')",
            (n + 1, task_id(n), 1 + n // 10, 200.0 * (n % 10), n % 10),
        )
        db.execute("INSERT INTO events VALUES (?, 1, 0, 'pending', 0, 0, NULL, NULL, 0)", (n + 1,))
    db.execute("INSERT INTO tally VALUES (1, 'pending', 10), (2, 'pending', 10)")
    db.close()
    return path


async def test_a_lane_of_all_priorities_becomes_one_lane_per_priority(old: Path) -> None:
    await check_lanes(SqliteEngine(old))
    findings = await examine(f"sqlite:///{old}")
    assert not [finding for finding in findings if finding.ok is False], findings


async def test_tasks_of_a_file_without_batches_and_logs_get_them(old: Path) -> None:
    await check_reports(SqliteEngine(old))


async def test_tasks_that_the_step_before_left_without_indexes_get_them(tmp_path: Path) -> None:
    """A build of schema 10 kept tasks that plain code added in `tasks`, with `ready` 2, and did not count them."""
    path = tmp_path / "old.db"
    db = apsw.Connection(str(path))
    migrate(db, path, 10)
    db.execute("INSERT INTO lanes (n, queue, type, needs, priority) VALUES (1, 'q', 't', '[]', 6)")
    for n, delay in enumerate((0, 0, 50)):
        db.execute(
            "INSERT INTO tasks (id, lane, status, ready, available_at, rank, version, created_at, updated_at, priority,"
            " timeout, max_retries, payload)"
            " VALUES (?1, 1, 'pending', ?3, 1e9 + ?2, 1e9 + ?2, 1, 1e9, 1e9, 6, 300, 3, x'31')",
            (task_id(n), delay, 2 if n else 1),
        )
    db.execute("INSERT INTO tally VALUES (1, 'pending', 1)")
    db.close()
    clock = ManualClock(1e9 + 20)
    engine = SqliteEngine(path, clock)
    await engine.open()
    try:
        assert await engine.count() == {CountKey("q", "t", Status.PENDING, 6): 3}
        assert [task.id for task in await engine.find(Filter(), limit=9)] == [task_id(n) for n in (2, 1, 0)]
        assert [event.available_at for event in await engine.history(task_id(2))] == [1e9 + 50]
        assert [task.id for task in await claim(engine, limit=9)] == [task_id(0), task_id(1)]
        clock.advance(60)
        assert [task.id for task in await claim(engine, limit=9)] == [task_id(2)]
        assert [event.available_at for event in await engine.history(task_id(2))] == [1e9 + 50, 1e9 + 50]
    finally:
        await engine.close()
    assert not [finding for finding in await examine(f"sqlite:///{path}") if finding.ok is False]
