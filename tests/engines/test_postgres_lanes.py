"""Lanes that no task uses are removed, and lanes with tasks never are."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.postgres.lanes import PostgresLanes
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Change, Filter, Status, Task, cancel, complete, fail, set_priority
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id
from tests.conditions import until
from tests.engines.damage import damage_postgres
from tests.engines.postgres_engines import clock, engine, url, wrong
from tests.servers.postgres import PostgresServer

__all__ = ["clock", "engine", "url"]  # fixtures

Db = psycopg.Connection[Any]


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Db]:
    """Another connection to the tables of the engine."""
    with psycopg.connect(postgres.url(), autocommit=True) as db:
        yield db


def types(db: Db) -> set[str]:
    """The types of all lanes."""
    return {type for (type,) in db.execute("SELECT type FROM test.lanes")}


async def leave_empty_lanes(engine: PostgresEngine, *numbers: int) -> None:
    """Add, complete and delete tasks of a type each, so that their lanes have none."""
    await engine.add([new(n, type=f"t{n}") for n in numbers])
    await engine.apply([complete(task, b"1") for task in await claim(engine, limit=len(numbers))])
    assert all(await engine.delete([task_id(n) for n in numbers]))


async def test_lanes_without_tasks_are_removed(engine: PostgresEngine, clock: ManualClock, url: str, db: Db) -> None:
    await leave_empty_lanes(engine, *range(20))
    await engine.add(
        [new(20, type="ready"), new(21, type="later", delay=60.0), new(22, type="ends"), new(23, type="damaged")]
    )
    (ended,) = await claim(engine, types=("ends",))
    await engine.apply([complete(ended, b"1")])
    await damage_postgres(engine, task_id(23), "retry = '{\"half'")
    assert await engine.get([task_id(23)]) == [None]  # set aside
    assert len(types(db)) == 24
    await engine.repair()
    assert types(db) == {"ready", "later", "ends", "damaged"}
    clock.advance(60)
    assert {task.type for task in await claim(engine, limit=9)} == {"ready", "later"}
    assert await wrong(url) == []


@pytest.mark.parametrize("later", [{}, {"delay": 60.0}, {"idempotency_key": "once"}])
async def test_a_producer_that_knows_a_removed_lane_makes_it_again(
    engine: PostgresEngine, clock: ManualClock, url: str, db: Db, later: dict[str, Any]
) -> None:
    await leave_empty_lanes(engine, 0)
    other = PostgresEngine(address_of(url), clock)
    await other.open()
    await other.repair()
    await other.close()
    assert types(db) == set()
    (added,) = await engine.add([new(1, type="t0", **later)])
    assert added.new
    clock.advance(60)
    assert [task.id for task in await claim(engine)] == [added.id]
    assert await wrong(url) == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
async def test_a_callers_transaction_does_not_use_a_removed_lane(
    engine: PostgresEngine, postgres: PostgresServer, url: str, isolation: str
) -> None:
    await leave_empty_lanes(engine, 0)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as theirs:
        await theirs.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        await theirs.execute("SELECT count(*) FROM test.lanes")  # the snapshot still has the lane
        await engine.repair()
        try:
            await engine.add_on(theirs, [new(1, type="t0")])
        except StorageError:
            await theirs.rollback()
            assert isolation == "repeatable read"
            await engine.add_on(theirs, [new(1, type="t0")])
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert await wrong(url) == []


async def test_no_task_is_lost_while_lanes_are_removed(engine: PostgresEngine, url: str, db: Db) -> None:
    async def use(first: int) -> None:
        for n in range(first, first + 15):
            await engine.add([new(n, type=f"t{n % 3}")])
            while not (claimed := await claim(engine, limit=1)):  # others have locked the first ones
                assert sum((await engine.count()).values()) > 0
            (task,) = claimed
            assert await engine.apply([complete(task, b"1")]) == [True]
            assert await engine.delete([task.id]) == [True]
            await engine.repair()  # while the others add

    await asyncio.gather(*(use(first) for first in (0, 100, 200)))
    await engine.repair()
    assert (types(db), sum((await engine.count()).values())) == (set(), 0)
    assert await wrong(url) == []


async def test_a_group_without_lanes_is_removed(engine: PostgresEngine, db: Db) -> None:
    await leave_empty_lanes(engine, 0)
    await engine.add([new(1, queue="other", needs=("gpu",))])
    await engine.repair()
    assert db.execute("SELECT queue FROM test.lane_groups").fetchall() == [("other",)]
    await engine.add([new(2, type="t0")])
    assert [task.id for task in await claim(engine)] == [task_id(2)]


async def test_a_lane_with_tasks_stays_even_if_its_counts_are_wrong(
    engine: PostgresEngine, clock: ManualClock, db: Db
) -> None:
    kinds = ("ready", "later", "running", "done", "damaged")
    await engine.add([new(n, type=type, delay=60.0 * (type == "later")) for n, type in enumerate(kinds)])
    (running,) = await claim(engine, types=("running",))
    await engine.apply([complete(task, b"1") for task in await claim(engine, types=("done",))])
    await damage_postgres(engine, task_id(4), "retry = '{\"half'")
    assert await engine.get([task_id(4)]) == [None]
    db.execute("DELETE FROM test.tally")  # as if nothing were there
    await engine.repair()
    assert types(db) == set(kinds)
    assert await engine.apply([complete(running, b"2")]) == [True]
    clock.advance(60)
    assert {task.type for task in await claim(engine, limit=9)} == {"ready", "later"}
    assert [task and task.type for task in await engine.get([task_id(2), task_id(3)])] == ["running", "done"]


@contextmanager
def paused(db: Db, table: str) -> Iterator[None]:
    """Hold a removal from this table between its snapshot and its first lock, until this context ends."""
    db.execute(
        "CREATE OR REPLACE FUNCTION test.require_format(known integer) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" IF position('DELETE FROM \"test\".{table} ' IN current_query()) > 0 THEN"
        "   PERFORM pg_advisory_xact_lock(1); END IF; RETURN true; END $$"
    )
    db.execute("SELECT pg_advisory_lock(1)")
    try:
        yield
    finally:
        db.execute("SELECT pg_advisory_unlock(1)")


def is_paused(db: Db) -> bool:
    waits = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted"
    return db.execute(waits).rowcount > 0


@pytest.mark.parametrize("table", ["lanes", "lane_groups"])
async def test_what_another_connection_uses_during_the_removal_stays(
    engine: PostgresEngine, clock: ManualClock, url: str, db: Db, table: str
) -> None:
    await leave_empty_lanes(engine, 0)
    other = PostgresEngine(address_of(url), clock)
    await other.open()
    try:
        with paused(db, table):
            removal = asyncio.create_task(other.repair())
            await until(is_paused, db)
            (added,) = await engine.add([new(1, type="t0")])
        await removal
    finally:
        await other.close()
    assert types(db) == {"t0"}
    assert [task.id for task in await claim(engine)] == [added.id]
    assert await wrong(url) == []


async def test_a_lane_to_which_an_open_transaction_adds_stays(
    engine: PostgresEngine, postgres: PostgresServer, url: str
) -> None:
    await leave_empty_lanes(engine, 0)
    async with await psycopg.AsyncConnection.connect(postgres.url()) as theirs:
        await engine.add_on(theirs, [new(1, type="t0")])
        await engine.repair()
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert await wrong(url) == []


async def test_a_task_added_while_its_lane_is_being_removed_gets_a_new_lane(
    engine: PostgresEngine, postgres: PostgresServer, url: str, db: Db
) -> None:
    await leave_empty_lanes(engine, 0)
    blocked = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with psycopg.connect(postgres.url()) as removal:
        removal.execute("DELETE FROM test.tally")
        removal.execute("DELETE FROM test.lanes")
        adding = asyncio.create_task(engine.add([new(1, type="t0")]))
        await until(lambda: db.execute(blocked).rowcount > 0)
    assert (await adding)[0].new
    assert [task.id for task in await claim(engine)] == [task_id(1)]
    assert await wrong(url) == []


async def test_a_task_whose_new_lane_is_removed_before_its_priority_changes_gets_another_one(
    engine: PostgresEngine, db: Db, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.add([new(1), new(2), new(3, priority=0)])
    (urgent,) = await claim(engine, limit=1)
    await engine.apply([complete(urgent)])
    await engine.delete([urgent.id])  # its lane is empty, and the engine knows its number
    check, calls = PostgresLanes.check, 0

    async def check_before_removal(lanes: PostgresLanes, keys: Any) -> None:
        nonlocal calls
        await check(lanes, keys)
        calls += 1
        if calls == 1:
            db.execute("DELETE FROM test.tally WHERE lane IN (SELECT n FROM test.lanes WHERE priority = 0)")
            db.execute("DELETE FROM test.lanes WHERE priority = 0")

    monkeypatch.setattr(PostgresLanes, "check", check_before_removal)
    changes = [set_priority(task_id(1), 0), set_priority(task_id(9), 0), cancel(task_id(2))]
    assert await engine.apply(changes) == [True, False, True]
    assert [(task.id, task.priority) for task in await claim(engine)] == [(task_id(1), 0)]
    assert await wrong(url) == []


@pytest.mark.parametrize("is_complete", [False, True])
async def test_an_error_after_some_of_the_changes_is_an_unknown_outcome(
    engine: PostgresEngine, db: Db, monkeypatch: pytest.MonkeyPatch, *, is_complete: bool
) -> None:
    await engine.add([new(1), new(2, type="other")])
    make = PostgresLanes.make

    async def make_and_remove(lanes: PostgresLanes, keys: Any) -> Any:
        made = await make(lanes, keys)
        db.execute("DELETE FROM test.tally WHERE lane IN (SELECT n FROM test.lanes WHERE priority = 0)")
        db.execute("DELETE FROM test.lanes WHERE priority = 0")
        return made

    (other,) = await claim(engine, types=("other",))
    monkeypatch.setattr(PostgresLanes, "make", make_and_remove)
    with pytest.raises(OutcomeUnknown, match=r"1 of 2 changes are written, then: .* keep being removed"):
        await engine.apply([set_priority(task_id(1), 0), complete(other, b"1") if is_complete else cancel(other.id)])
    with pytest.raises(StorageError) as raised:
        await engine.apply([set_priority(task_id(1), 0)])
    assert type(raised.value) is StorageError


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("is_list", [False, True])
async def test_a_task_whose_lane_was_removed_during_a_read_is_not_damaged(
    engine: PostgresEngine, clock: ManualClock, url: str, postgres: PostgresServer, *, is_list: bool, is_moved: bool
) -> None:
    await engine.add([new(1)])
    other = PostgresEngine(address_of(url), clock)  # it does not know the lane yet
    await other.open()
    blocked = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    try:
        with psycopg.connect(postgres.url(), autocommit=True) as db, psycopg.connect(postgres.url()) as removal:
            removal.execute("LOCK TABLE test.lanes IN ACCESS EXCLUSIVE MODE")
            read: Any = other.find(Filter(), limit=9) if is_list else other.get([task_id(1)])
            reading = asyncio.create_task(read)
            await until(lambda: db.execute(blocked).rowcount > 0)
            removal.execute("DELETE FROM test.tally")
            removal.execute("DELETE FROM test.ready")
            if is_moved:  # deleted, and added again in another lane
                removal.execute("UPDATE test.lanes SET n = 77")
                removal.execute("UPDATE test.tasks SET lane = 77")
            else:
                removal.execute("DELETE FROM test.tasks")
                removal.execute("DELETE FROM test.lanes")
        assert [task.id for task in await reading if task] == [task_id(1)] * is_moved
        assert await other.notes("quarantine/") == []
        assert [task is not None for task in await other.get([task_id(1)])] == [is_moved]
    finally:
        await other.close()


async def test_a_task_of_a_lane_that_does_not_exist_is_damaged(engine: PostgresEngine) -> None:
    await engine.add([new(1), new(2)])
    await damage_postgres(engine, task_id(1), "lane = 77")
    assert [task and task.id for task in await engine.get([task_id(1), task_id(2)])] == [None, task_id(2)]
    assert [note.name for note in await engine.notes("quarantine/")] == [f"quarantine/tasks/{task_id(1)}"]


@pytest.mark.parametrize("statuses", [(), (Status.PENDING,)])
async def test_a_list_does_not_read_the_counts_of_all_lanes(
    engine: PostgresEngine, db: Db, statuses: tuple[Status, ...]
) -> None:
    await engine.add([new(1)])
    with db.transaction():
        db.execute("LOCK TABLE test.tally IN ACCESS EXCLUSIVE MODE")  # a read would wait
        async with asyncio.timeout(30):
            assert [task.id for task in await engine.find(Filter(statuses=statuses), limit=9)] == [task_id(1)]


async def test_a_process_that_has_seen_too_many_lanes_reads_them_again(
    engine: PostgresEngine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qo.engines.postgres.lanes._MAX_CACHED", 2)
    for n in range(5):
        await engine.add([new(n, type=f"t{n}"), new(10 + n, type="other")])
    found = await asyncio.gather(*(engine.get([task_id(n), task_id(10)]) for n in range(5)))
    assert [[task and task.type for task in tasks] for tasks in found] == [[f"t{n}", "other"] for n in range(5)]
    assert len(await claim(engine, limit=10)) == 10
    assert await wrong(url) == []


@pytest.mark.parametrize("outcome", [complete, partial(fail, error="no")], ids=["complete", "fail"])
async def test_a_task_whose_lane_is_damaged_keeps_no_other_from_being_settled(
    engine: PostgresEngine, outcome: Callable[[Task], Change]
) -> None:
    await engine.add([new(n, max_retries=0) for n in range(3)])
    await damage_postgres(engine, task_id(0), "lane = 12345")
    healthy = await claim(engine, limit=9)
    assert [task.id for task in healthy] == [task_id(1), task_id(2)]
    await damage_postgres(engine, task_id(1), "lane = 12345")  # while it runs
    assert (await engine.apply([outcome(task) for task in healthy]))[1]
    assert (await engine.delete([task.id for task in healthy]))[1]
