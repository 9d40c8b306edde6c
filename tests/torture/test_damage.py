"""Damage to each kind of stored document: others go on, and nothing damaged is handed out or written back."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from qo.bucket import ANY
from qo.buckets.memory import MemoryBucket
from qo.client import Client
from qo.damage import DAMAGED_TASKS
from qo.engine import Engine
from qo.engines.large_values import LargeValuesEngine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.sqlite import SqliteEngine
from qo.errors import StorageError
from qo.ids import new_token
from qo.model import Filter, NewTask, Status, complete
from qo.monitor import Monitor
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id
from tests.engines.damage import damage, damage_postgres, damage_redis, damage_sqlite
from tests.engines.layouts import LAYOUTS
from tests.engines.redis_engines import opened
from tests.servers.postgres import PostgresServer
from tests.servers.redis import Server

NUMBER = 6  # tasks
SIZE = 300  # bytes of a value that still lies inside its task


def flip(data: bytes, dice: random.Random) -> bytes:
    if not data:
        return b"\x01"
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flip": flip,
    "cut": lambda data, dice: data[: dice.randrange(max(1, len(data)))],
    "empty": lambda _data, _dice: b"",
    "deep": lambda _data, _dice: b'{"hello": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "foreign": lambda _data, _dice: b'{"hello": "world"}',
}


def tasks() -> list[NewTask]:
    payloads = [b'"%s"' % (b"%d" % n * (2 * SIZE if n % 3 == 0 else 10)) for n in range(NUMBER)]
    return [new(n, payload=payload) for n, payload in enumerate(payloads)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_one_damaged_object_of_a_bucket(layout: str, kind: str, scale: int, seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(15 * scale):
        clock = ManualClock()
        bucket = MemoryBucket(clock)

        def engine() -> Engine:
            below = LAYOUTS[layout](bucket, clock)  # noqa: B023 - used in this round only
            return LargeValuesEngine(below, bucket, inline=SIZE, clock=clock)  # noqa: B023

        first = engine()
        await first.add(tasks())
        await first.write_note("workers/w", b"{}", expected=ANY)
        await first.close()
        keys = [key async for key in bucket.keys("")]
        key = dice.choice(keys)
        blob = await bucket.get(key)
        assert blob is not None
        spoiled = KINDS[kind](blob.data, dice)
        await bucket.put(key, spoiled, expected=ANY)
        await check_bucket(
            engine(), clock, is_whole=len(keys) == 1 or key.startswith(("queue", "log/")), about=f"{kind} {key}"
        )


async def check_bucket(engine: Engine, clock: ManualClock, *, is_whole: bool, about: str) -> None:
    """All but one task run with their own payloads. Only where all lie in the damaged object, it may be refused."""
    expected = {task.id: task.payload for task in tasks()}
    try:
        client = Client(engine, clock=clock)
        await Monitor(client, id="m", clock=clock).check()
        await client.workers()
        done: set[str] = set()
        while taken := await claim(engine, limit=2):
            assert all(task.payload == expected[task.id] for task in taken), about
            assert all(await engine.apply([complete(task, b"1") for task in taken])), about
            done |= {task.id for task in taken}
        assert len(done) >= NUMBER - 1, about
        ended = await engine.find(Filter(statuses=(Status.COMPLETED,)), limit=99)
        assert {task.id for task in ended} == done, about
        assert all(task.payload == expected[task.id] for task in ended), about
        await engine.count()
    except StorageError:
        if not is_whole:
            raise
    finally:
        await engine.close()


async def go_on(engine: Engine, clock: ManualClock, spoil: Callable[[str], object], about: str) -> None:
    await engine.add(tasks())
    await spoil(task_id(2))  # type: ignore[misc]
    client = Client(engine, clock=clock)
    await engine.find(Filter(), limit=2)
    await Monitor(client, id=new_token(), clock=clock).check()
    done: set[str] = set()
    while taken := await claim(engine, limit=2):
        await engine.apply([complete(task) for task in taken])
        done |= {task.id for task in taken}
    assert {task_id(n) for n in range(NUMBER) if n != 2} <= done, about
    await engine.count()
    await engine.history(task_id(2))


async def survive_many(engine: Engine, clock: ManualClock, scale: int) -> None:
    """Most tasks are damaged. Listing, claims and recovery go on with the 20 others."""
    number = min(500, 25 * scale)
    bad, healthy = [task_id(n) for n in range(number)], [task_id(n) for n in range(number, number + 20)]
    await engine.add([new(n) for n in range(number + 20)])
    for one in bad:
        await damage(engine, one)
    taken = [task for _ in range(20) for task in await claim(engine, limit=1, lease=10.0)]
    assert sorted(task.id for task in taken) == healthy
    assert sorted(task.id for task in await engine.find(Filter(), limit=100)) == healthy
    clock.advance(3600)
    assert (await Monitor(Client(engine, clock=clock), id=new_token(), clock=clock).check()).expired == 20
    assert len(await engine.notes(DAMAGED_TASKS)) == number
    assert sum((await engine.count()).values()) in {20, number + 20}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_many_damaged_tasks_of_a_bucket(layout: str, scale: int) -> None:
    clock = ManualClock()
    bucket = MemoryBucket(clock)
    engine = LargeValuesEngine(LAYOUTS[layout](bucket, clock), bucket, inline=SIZE, clock=clock)
    await survive_many(engine, clock, scale)
    await engine.close()


async def test_many_damaged_rows_of_sqlite(tmp_path: Path, scale: int) -> None:
    clock = ManualClock()
    engine = SqliteEngine(tmp_path / "qo.db", clock)
    await engine.open()
    try:
        await survive_many(engine, clock, scale)
    finally:
        await engine.close()


async def test_many_damaged_rows_of_postgres(postgres: PostgresServer, scale: int) -> None:
    clock = ManualClock()
    engine = PostgresEngine(address_of(f"{postgres.url()}?schema=t{new_token()}"), clock)
    await engine.open()
    try:
        await survive_many(engine, clock, scale)
    finally:
        await engine.close()


async def test_many_damaged_hashes_of_redis(redis_server: Server, scale: int) -> None:
    clock = ManualClock()
    async with opened(f"{redis_server.url}?prefix={new_token()}", clock) as engine:
        await survive_many(engine, clock, scale)


SETTINGS = [
    "retry = '{'",
    "retry = '[1, 2'",
    'retry = \'{"x":' + "[" * 5_000 + "]" * 5_000 + "}'",
    "status = 'qending'",
    "lane = 12345",
    "created_at = 1e300",
    "available_at = -1e300",
    "payload = ''",
]
ONLY_SQLITE = ["lane = 'x'", "rank = 'x'", "created_at = 'x'", "version = x'00ff'", "payload = 'ä'", "retry = x'ff'"]


@pytest.mark.parametrize("setting", [*SETTINGS, *ONLY_SQLITE])
async def test_one_damaged_row_of_sqlite(setting: str, tmp_path: object) -> None:
    clock = ManualClock()
    engine = SqliteEngine(tmp_path / "qo.db", clock)  # type: ignore[operator]
    await engine.open()
    try:
        await go_on(engine, clock, lambda task: damage_sqlite(engine, task, setting), setting)
    finally:
        await engine.close()


@pytest.mark.parametrize("setting", SETTINGS)
async def test_one_damaged_row_of_postgres(setting: str, postgres: PostgresServer) -> None:
    clock = ManualClock()
    engine = PostgresEngine(address_of(f"{postgres.url()}?schema=t{new_token()}"), clock)
    await engine.open()
    try:
        await go_on(engine, clock, lambda task: damage_postgres(engine, task, setting), setting)
    finally:
        await engine.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_one_damaged_field_of_redis(kind: str, redis_server: Server, scale: int, seed: int) -> None:
    dice = random.Random(seed)
    for field in ("s", "d", "p") * scale:
        clock = ManualClock()
        async with opened(f"{redis_server.url}?prefix={new_token()}", clock) as engine:

            def spoil(data: bytes) -> bytes:
                return KINDS[kind](data, dice)

            await go_on(engine, clock, lambda task: damage_redis(engine, task, field, spoil), f"{kind} {field}")  # noqa: B023
