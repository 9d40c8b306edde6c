"""The archive of finished tasks: callers see no difference, even if tasks are moved immediately."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from urllib.parse import quote

import psycopg
import pytest

from qo.clock import system_clock
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.redis import RedisEngine
from qo.engines.redis.address import address_of
from qo.engines.redis.archive import PostgresArchive
from qo.engines.redis.archived_engine import ArchivingEngine
from qo.engines.redis.task_fields import TaskRecord
from qo.errors import InvalidSetting, StorageError
from qo.model import Change, Filter, Status, archive, complete, cursor, fail, replay
from qo.testing import EngineContract, ManualClock, random_history
from qo.testing.engine_groups import FleetLimitContract, GroupContract
from qo.testing.engine_notes import ScheduleContract, StatsContract
from qo.testing.engine_order import ClaimOrderContract
from qo.testing.samples import claim, claim_one, new, stored, task_id
from tests.engines.contract_parts import left_to_torture
from tests.engines.damage import damage_redis
from tests.engines.few_histories import FewHistories
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server

names = count()


class Eager(ArchivingEngine):
    """Moves tasks as soon as they have finished."""

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        answers = await super().apply(changes)
        await self.move(min_age=0.0)
        return answers


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@asynccontextmanager
async def eager(
    clock: ManualClock, redis_server: Server, postgres: PostgresServer, *, move_interval: float = 60.0
) -> AsyncIterator[Eager]:
    prefix = f"a{next(names)}"
    redis = RedisEngine(address_of(f"{redis_server.url}?prefix={prefix}"), clock)
    engine = Eager(redis, PostgresArchive(postgres.url(), prefix), clock, move_interval=move_interval)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def engine(clock: ManualClock, redis_server: Server, postgres: PostgresServer) -> AsyncIterator[Eager]:
    async with eager(clock, redis_server, postgres) as engine:
        yield engine


# Pending tasks and notes stay in Redis: test_redis.py tests their order, groups and schedules.
@left_to_torture(ClaimOrderContract, GroupContract, FleetLimitContract, ScheduleContract, StatsContract)
class TestArchiving(FewHistories, EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, redis_server: Server, postgres: PostgresServer) -> AsyncIterator[Eager]:
        async with eager(clock, redis_server, postgres) as engine:
            yield engine

    async def damage(self, engine: Engine, task_id: str) -> None:
        assert isinstance(engine, Eager)
        await damage_redis(engine.redis, task_id, "d")


async def test_a_finished_task_is_only_in_the_archive(engine: Eager) -> None:
    await engine.add([new(payload=b"\0\xff")])
    await engine.apply([complete(await claim_one(engine), b"\xff\0")])
    assert await engine.redis.get([task_id(0)]) == [None]
    task = await stored(engine)
    assert (task.payload, task.result, task.status) == (b"\0\xff", b"\xff\0", Status.COMPLETED)
    assert [event.status.value for event in await engine.history(task.id)] == ["pending", "running", "completed"]
    assert await engine.apply([complete(task, b"again")]) == [True]  # a repeat is recognised for archived tasks too
    assert (await stored(engine)).result == b"\xff\0"
    assert await engine.archive.unknown_fields(task.id) is None, "known fields are not stored as unknown ones"


@pytest.mark.parametrize("seed", range(4))
async def test_random_histories_are_answered_as_the_model_answers_while_tasks_move(
    clock: ManualClock, redis_server: Server, postgres: PostgresServer, seed: int
) -> None:
    async with eager(clock, redis_server, postgres, move_interval=0.0) as engine:
        await random_history(engine, clock, seed)


class Gate(PostgresArchive):
    """Lets a test do something between the reading of finished tasks and their storing."""

    def __init__(self, url: str, prefix: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(url, prefix)
        self._meanwhile = meanwhile

    async def save(self, records: Sequence[TaskRecord]) -> None:
        await self._meanwhile()
        await super().save(records)


@pytest.mark.parametrize("fate", ["deleted", "replayed"])
async def test_a_task_that_changes_while_it_is_moved_is_not_in_the_archive(
    clock: ManualClock, redis_server: Server, postgres: PostgresServer, fate: str
) -> None:
    """Another process deletes or replays a task after the mover has read it."""
    async with eager(clock, redis_server, postgres) as mover:
        await mover.add([new(), new(1)])
        done, other = await claim(mover, limit=2)
        await mover.redis.apply([fail(done, "broken"), complete(other)])

        async def change() -> None:
            if fate == "deleted":
                assert await mover.redis.delete([done.id]) == [True]
            else:
                assert await mover.redis.apply([replay(done.id)]) == [True]

        await mover.archive.close()
        mover.archive = Gate(postgres.url(), mover.redis.address.prefix, change)
        assert await mover.move(min_age=0.0) == 2
        assert await mover.redis.get([other.id]) == [None], "the other task is moved"
        assert sum((await mover.count()).values()) == (1 if fate == "deleted" else 2)
        (task,) = await mover.get([done.id])
        assert (task and task.status) == (None if fate == "deleted" else Status.PENDING)
        assert set(await mover.archive.get([done.id, other.id])) == {other.id}


async def test_pages_include_redis_and_the_archive(engine: Eager, clock: ManualClock) -> None:
    for n in range(12):
        await engine.add([new(n)])
        clock.advance(1)
    await engine.apply([complete(task) for task in await claim(engine, limit=12) if int(task.id[:8], 16) % 2])
    seen, after = list[str](), ""
    while page := await engine.find(Filter(), limit=5, after=after):
        seen += [task.id for task in page]
        after = cursor(page[-1])
    assert seen == [task_id(n) for n in range(11, -1, -1)]


async def test_a_replayed_task_is_restored_with_its_history(engine: Eager, clock: ManualClock) -> None:
    await engine.add([new(max_retries=0)])
    task = await claim_one(engine)
    clock.advance(100)
    await engine.apply([Change(id=task.id, guard="held", lease_id=task.lease_id, to="failed", error="e")])  # type: ignore[arg-type]
    assert await engine.apply([replay(task.id)]) == [True]
    assert (await engine.archive.get([task.id])) == {}
    assert (await claim_one(engine)).attempt == 2
    assert len(await engine.history(task.id)) == 5


async def test_what_a_newer_build_adds_to_a_task_survives_the_archive(engine: Eager) -> None:
    await engine.add([new(max_retries=2), new(1)])
    task = await claim_one(engine)
    key = f"{{{engine.redis.address.prefix}}}:task:{task.id}"
    description = json.loads(await engine.redis.send("HGET", key, "d"))
    description[2] = {"extra": "kept"}
    added = {b"x": b"kept\0\xff", b"hx": b"kept", b"d": json.dumps([*description, None, "kept"]).encode()}
    await engine.redis.send("HSET", key, *(word for pair in added.items() for word in pair), writing=True)
    await engine.apply([complete(task, b"1")])
    assert await engine.redis.get([task.id]) == [None], "it is only in the archive"
    assert await engine.apply([archive(task.id)]) == [True]
    assert await engine.apply([replay(task.id)]) == [True]
    fields = await engine.redis.send("HGETALL", key)
    assert added.items() <= dict(zip(fields[::2], fields[1::2], strict=True)).items()
    assert len(await engine.history(task.id)) == 5


async def test_an_archive_of_an_older_build_is_migrated(
    engine: Eager, clock: ManualClock, redis_server: Server, postgres: PostgresServer
) -> None:
    await engine.add([new()])
    await engine.apply([complete(await claim_one(engine))])
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as connection:
        await connection.execute("ALTER TABLE qo_archive DROP COLUMN rest")
    async with eager(clock, redis_server, postgres) as other:
        await other.add([new(1)])
        await other.apply([complete(await claim_one(other))])
        assert (await stored(other, 1)).status is Status.COMPLETED
    assert await engine.apply([archive(task_id(0))]) == [True]


async def test_a_url_names_the_archive(redis_server: Server, postgres: PostgresServer) -> None:
    url = f"{redis_server.url}?prefix=a{next(names)}&archive={quote(postgres.url(), safe='')}"
    engine = open_engine(url)
    assert isinstance(engine, ArchivingEngine)
    try:
        await engine.open()
        await engine.add([new()])
        await engine.apply([complete(await claim_one(engine))])
        assert await engine.move(min_age=0.0) == 1
        assert (await stored(engine)).status is Status.COMPLETED
    finally:
        await engine.close()
    with pytest.raises(InvalidSetting, match="postgresql://"):
        open_engine(f"{redis_server.url}?archive=mysql://h/d")


async def test_tasks_run_while_the_archive_is_unreachable(redis_server: Server) -> None:
    prefix = f"a{next(names)}"
    redis = RedisEngine(address_of(f"{redis_server.url}?prefix={prefix}"))
    engine = ArchivingEngine(redis, PostgresArchive("postgresql://127.0.0.1:1/none", prefix), system_clock)
    try:
        await redis.add([new()])
        assert await engine.apply([complete(await claim_one(engine))]) == [True]
        with pytest.raises(StorageError, match="archive cannot be reached"):
            await engine.move(min_age=0.0)
        assert (await stored(engine)).status is Status.COMPLETED
    finally:
        await engine.close()


async def test_the_doctor_checks_the_archive(redis_server: Server, postgres: PostgresServer) -> None:
    for place, ok in ((postgres.url(), True), ("postgresql://127.0.0.1:1/none", False)):
        findings = await examine(f"{redis_server.url}?archive={quote(place, safe='')}")
        assert [finding.ok for finding in findings if finding.name == "archive"] == [ok]
