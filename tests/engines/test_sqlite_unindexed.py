"""Tasks from plain code are indexed and counted in groups. Until then, all that reads or claims tasks finds them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from qo.damage import note_name
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.doctor import examine
from qo.engines.sqlite.file_locks import acquire_locks, release_locks
from qo.model import CountKey, Filter, PendingKind, Status
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, task_id
from tests.conditions import TIMEOUT
from tests.engines.direct_writers import direct, opened, rows
from tests.engines.sqlite_engines import clock, connection, engine

__all__ = ["clock", "engine"]  # fixtures


@pytest.fixture
async def added(engine: SqliteEngine) -> list[str]:
    """The ids of three tasks in the order of their submits: two that are due, and one that is not."""
    await engine.add([new("first")])
    await claim(engine)
    for n, delay in enumerate((0.0, 0.0, 5.0)):
        await asyncio.to_thread(engine.add_directly, [new(n, delay=delay, priority=6)])
    return [task_id(n) for n in range(3)]


def unindexed(engine: SqliteEngine) -> int:
    count: int = connection(engine, 1).execute("SELECT count(*) FROM unindexed").get
    return count


async def test_counts_and_listings_contain_them(engine: SqliteEngine, added: list[str]) -> None:
    assert unindexed(engine) == 3
    assert (await engine.count())[CountKey("q", "t", Status.PENDING, 6)] == 3
    for where in (Filter(), Filter(statuses=(Status.PENDING,)), Filter(queues=("q",), types=("t",))):
        found = [task.id for task in await engine.find(where, limit=9)]
        assert [id for id in found if id != task_id("first")] == added[::-1]
    coming = Filter(statuses=(Status.PENDING,), pending=(PendingKind.SCHEDULED,))
    assert [task.id for task in await engine.find(coming, limit=9)] == added[2:]
    assert await engine.find(Filter(statuses=(Status.RUNNING,), types=("other",)), limit=9) == []
    assert unindexed(engine) == 3, "reading indexed them"


async def test_a_claim_takes_them_in_order(engine: SqliteEngine, clock: ManualClock, added: list[str]) -> None:
    assert [task.id for task in await claim(engine, limit=9)] == added[:2]
    assert unindexed(engine) == 0
    clock.advance(6)
    assert [task.id for task in await claim(engine, limit=9)] == added[2:]
    assert (await engine.count())[CountKey("q", "t", Status.RUNNING, 6)] == 4


async def test_doctor_finds_no_fault(engine: SqliteEngine, tmp_path: Path, added: list[str]) -> None:
    url = f"sqlite:///{tmp_path / 'qo.db'}"
    assert added and not [finding for finding in await examine(url) if finding.ok is False]
    connection(engine).execute("UPDATE unindexed SET lane = 99 WHERE id = ?", (added[2],))
    assert [finding.name for finding in await examine(url) if finding.ok is False] == ["states"]


async def test_reads_by_id_and_batch_contain_them(engine: SqliteEngine, clock: ManualClock, added: list[str]) -> None:
    await asyncio.to_thread(
        engine.add_directly, [new(3, batch="b", priority=6, payload=b'{"a":1}', run_at=clock() + 9)]
    )
    found = await engine.get([task_id(3), task_id(3)[:-1] + "9", "", "not an id", *added[:1]])
    assert [task and (task.id, task.payload, task.status) for task in found] == [
        (task_id(3), b'{"a":1}', Status.PENDING),
        None,
        None,
        None,
        (added[0], b"null", Status.PENDING),
    ]
    assert [task.id for task in await engine.find(Filter(batch="b"), limit=9)] == [task_id(3)]
    assert await engine.find(Filter(batch="b", statuses=(Status.RUNNING,)), limit=9) == []
    assert await engine.count("b") == {CountKey("q", "t", Status.PENDING, 6): 1}
    before = [await engine.history(task_id) for task_id in (task_id(3), *added)]
    assert [len(events) for events in before] == [1, 1, 1, 1]
    assert unindexed(engine) == 4, "reading indexed them"
    stored = found[:1], await engine.find(Filter(), limit=9)
    await engine.add([new("indexes all")])
    assert unindexed(engine) == 0
    assert (await engine.get([task_id(3)]), (await engine.find(Filter(), limit=9))[1:]) == (stored[0], stored[1])
    assert [await engine.history(task_id) for task_id in (task_id(3), *added)] == before


@pytest.mark.usefixtures("added")
async def test_the_same_id_is_added_once(engine: SqliteEngine) -> None:
    """One that is not indexed, one that is, and two ids of the same time whose random bits begin alike."""
    assert await asyncio.to_thread(engine.add_directly, [new(1)]) == [(task_id(1), False)]
    assert unindexed(engine) == 0
    assert await asyncio.to_thread(engine.add_directly, [new(1)]) == [(task_id(1), False)]
    alike = [new(5), replace(new(5), id=task_id(5)[:-1] + "9")]
    for task in alike:
        assert await asyncio.to_thread(engine.add_directly, [task]) == [(task.id, True)]
    assert {task.id for task in await engine.find(Filter(), limit=9)} >= {task.id for task in alike}


async def test_a_damaged_one_is_set_aside(engine: SqliteEngine, added: list[str]) -> None:
    damage = connection(engine, 1)
    damage.execute("UPDATE unindexed SET retry = '{' WHERE id = ?", (added[0],))
    damage.execute("PRAGMA writable_schema = ON")
    damage.execute("UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'unindexed'")
    damage.execute("PRAGMA writable_schema = RESET")
    damage.execute("UPDATE unindexed SET rank = NULL, timeout = NULL WHERE id = ?", (added[1],))
    found = await engine.get(added)
    assert [task and task.id for task in found] == [None, None, added[2]]
    assert sum((await engine.count()).values()) == 2
    assert {note.name for note in await engine.notes("quarantine/")} == {note_name(task_id) for task_id in added[:2]}


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[tuple[SqliteEngine, SqliteEngine]]:
    """Two engines on one file, with lanes for the types `t` and `u`, and nothing to claim."""
    pair = SqliteEngine(tmp_path / "qo.db"), SqliteEngine(tmp_path / "qo.db")
    for each in pair:
        await each.open()
    await pair[0].add([new("first"), new("second", type="u")])
    assert len(await claim(pair[0], types=("t", "u"), limit=2)) == 2
    yield pair
    for each in pair:
        await each.close()


async def test_another_engine_that_waits_is_woken(engines: tuple[SqliteEngine, SqliteEngine]) -> None:
    ours, theirs = engines
    waiting = asyncio.create_task(theirs.wait(claim_request(types=("t",)), 600.0))
    await asyncio.to_thread(ours.add_directly, [new(1, type="u")])
    assert not (await asyncio.wait([waiting], timeout=0.3))[0], "woken for a type that it did not ask for"
    await asyncio.to_thread(ours.add_directly, [new(2)])
    await asyncio.wait_for(waiting, TIMEOUT)
    assert unindexed(ours) == 2, "waiting indexed them"
    assert [task.id for task in await claim(theirs, types=("t",))] == [task_id(2)]


async def test_a_wait_ends_when_one_of_them_is_due(engines: tuple[SqliteEngine, SqliteEngine]) -> None:
    ours, theirs = engines
    await asyncio.to_thread(ours.add_directly, [new(1, delay=0.3)])
    await asyncio.wait_for(theirs.wait(claim_request(types=("t",)), 600.0), TIMEOUT)
    assert [task.id for task in await claim(theirs, types=("t",))] == [task_id(1)]


def test_a_long_row_of_them_is_indexed_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with opened(path) as engine:
        highest = 0
        for n in range(1200):
            engine.add_directly([new(n)])
            highest = max(highest, unindexed(engine))
        assert highest == 512
    assert len(rows(path)) == 1201


def test_a_large_payload_is_indexed_immediately(tmp_path: Path) -> None:
    with opened(tmp_path / "qo.db") as engine:
        asyncio.run(engine.add([new("indexes all")]))
        engine.add_directly([new(1, payload=b'"%s"' % (b"x" * 10_000))])
        assert unindexed(engine) == 0


def test_a_connection_for_callers_that_opens_keeps_the_lock_of_the_writer(tmp_path: Path) -> None:
    """It opens in a transaction of the writer, which may contain writes of others."""
    path = tmp_path / "qo.db"
    with opened(path), direct(path) as (connection, _):
        locks = acquire_locks(path)
        try:
            locks.begin_write(locks)
            locks.borrow_steps(f"{path}-shm")
            assert not connection.add(new("beside the writer"), 0.0)
            locks.end_write()
            assert connection.add(new("after the writer"), 0.0)
        finally:
            release_locks(locks, lambda: None)
