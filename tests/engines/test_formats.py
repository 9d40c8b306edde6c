"""Old and new builds on one store: this build uses a format that allows it without loss, and refuses others."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from redis import Redis

from qo import notes
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines import examine, open_engine
from qo.engines.memory import MemoryEngine
from qo.engines.object_per_task import ObjectPerTaskEngine, layout
from qo.engines.object_per_task.keys import task_key
from qo.engines.one_object import OneObjectEngine
from qo.errors import NewerFormat, StorageError
from qo.formats import Format, check_format, format_of
from qo.model import ANY, Filter, Status, archive, complete, release, renew
from qo.testing.samples import claim, claim_one, new, stored, task_id
from qo.version import __version__
from tests.engines import fast_time
from tests.engines.damage import damage
from tests.engines.newer_build import (
    NewerBuild,
    NewerLog,
    NewerOne,
    NewerPostgres,
    NewerRedis,
    NewerSqlite,
    NewerSqliteObject,
    NewerTasks,
)
from tests.servers.postgres import url
from tests.servers.redis import Server

__all__ = ["url"]  # a fixture


@pytest.fixture(params=["sqlite", "postgres", "redis", "tasks", "one", "sqlite in a bucket", "log"])
def newer(request: pytest.FixtureRequest, tmp_path: Path) -> NewerBuild:
    """A store and the build that upgrades it."""
    match request.param:
        case "sqlite":
            return NewerSqlite(f"sqlite:///{tmp_path}/qo.db")
        case "postgres":
            return NewerPostgres(request.getfixturevalue("url"))
        case "redis":
            server: Server = request.getfixturevalue("redis_server")
            with Redis(port=server.port, db=7) as client:
                client.flushdb()
            return NewerRedis(f"redis://127.0.0.1:{server.port}/7")
        case "tasks":
            return NewerTasks(f"file://{tmp_path}/bucket")
        case "one":
            return NewerOne(f"file://{tmp_path}/bucket?layout=one")
        case "log":
            return NewerLog(f"file://{tmp_path}/bucket?layout=log")
        case _:
            return NewerSqliteObject(f"file://{tmp_path}/bucket?layout=sqlite")


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = open_engine(url)
    try:
        await engine.open()
        yield engine
    finally:
        await engine.close()


async def fill(engine: Engine) -> None:
    """Tasks 0 to 5: pending, pending later, running, completed, released, archived; and a note."""
    await engine.add([new(n, priority=n, delay=3600.0 if n == 1 else 0.0) for n in range(6)])
    await engine.add([new("running", type="other")])
    done, back, old = [await claim_one(engine, types=("t",)) for _ in range(3)]
    assert (done.id, back.id, old.id) == (task_id(0), task_id(2), task_id(3))
    await claim_one(engine, types=("other",))
    await engine.apply([complete(done, b"1"), release(back), complete(old)])
    await engine.apply([archive(old.id)])
    await engine.write_note("n", b"first", expected=ANY)


async def use(engine: Engine, name: str) -> None:
    """Every operation of an engine, on tasks of the newer build and on new tasks."""
    assert await engine.add([new(name), new(4)]) == [(task_id(name), True), (task_id(4), False)]
    held = {task.id: task for task in await claim(engine, types=("t",))}
    assert {task_id(4), task_id(5), task_id(name)} <= held.keys()
    assert all(await engine.apply([renew(task, 60.0) for task in held.values()]))
    assert all(await engine.apply([release(task) for task in held.values()]))
    again = await claim_one(engine, types=("t",))
    assert await engine.apply([complete(again, b"2")]) == [True]
    assert (await stored(engine, "running")).status is Status.RUNNING
    assert [event.status for event in await engine.history(again.id)][-1] is Status.COMPLETED
    assert task_id(name) in {task.id for task in await engine.find(Filter(), limit=99)}
    note = await engine.read_note("n")
    assert note is not None
    await engine.write_note("n", b"second", expected=note.version)
    assert await engine.delete([again.id]) == [True]


async def test_a_build_keeps_working_while_and_after_a_newer_one_extends_the_format(newer: NewerBuild) -> None:
    async with opened(newer.url) as running:
        await fill(running)
        await newer.upgrade(is_additive=True)
        await use(running, "while")
        async with opened(newer.url) as restarted:
            await use(restarted, "after")
    assert [finding for finding in await examine(newer.url) if finding.ok is False] == []
    assert len(await newer.unknown()) == 5, "of seven records two were deleted; the others keep what is not known"


@pytest.mark.parametrize("newer", ["sqlite", "postgres", "redis", "one", "sqlite in a bucket", "log"], indirect=True)
async def test_no_task_is_set_aside_in_a_store_of_a_newer_format(newer: NewerBuild) -> None:
    """Records that this build cannot read may be valid in the newer format."""
    async with opened(newer.url) as running:
        await running.add([new(n) for n in range(3)])
        await newer.upgrade(is_additive=True)
        await damage(running, task_id(1))
        for _ in range(2):  # a task that is set aside is not found again
            with pytest.raises(StorageError, match=r"newer qo"):
                await running.find(Filter(), limit=9)
        with pytest.raises(StorageError, match=r"newer qo"):
            await claim(running, limit=9)


@pytest.mark.parametrize("newer", ["sqlite", "postgres", "redis", "sqlite in a bucket", "log"], indirect=True)
async def test_a_claim_that_is_refused_for_one_task_releases_the_others(newer: NewerBuild) -> None:
    async with opened(newer.url) as running:
        await running.add([new(n) for n in range(3)])
        await newer.upgrade(is_additive=True)
        await damage(running, task_id(1))
        with pytest.raises(StorageError, match=r"newer qo"):
            await claim(running, limit=9)
    async with opened(newer.url) as running:  # background releases have ended after close()
        sound = await running.get([task_id(0), task_id(2)])
        assert [task and task.status for task in sound] == [Status.PENDING] * 2


async def test_a_format_that_excludes_this_build_is_refused_and_not_changed(newer: NewerBuild) -> None:
    async with opened(newer.url) as running:
        await fill(running)
        held = await stored(running, "running")
        await newer.upgrade(is_additive=False)
        with pytest.raises(NewerFormat, match=rf"this is qo {__version__}, .* use qo 9\.9\.0 or newer"):
            async with opened(newer.url):
                pass
        newer.forget_checks(running)
        writes: dict[str, Callable[[], Awaitable[object]]] = {
            "add": lambda: running.add([new("lost")]),
            "claim": lambda: claim(running, types=("t",)),
            "renew": lambda: running.apply([renew(held, 60.0)]),
            "complete": lambda: running.apply([complete(held)]),
            "delete": lambda: running.delete([task_id(3)]),
            "write_note": lambda: running.write_note("n", b"lost", expected=ANY),
            "drop_note": lambda: running.drop_note("n"),
        }
        answers = {name: (await asyncio.gather(write(), return_exceptions=True))[0] for name, write in writes.items()}
        assert all(isinstance(answer, NewerFormat) for answer in answers.values()), answers
        assert all("9.9.0" in str(answer) for answer in answers.values()), answers
    findings = [finding for finding in await examine(newer.url) if finding.ok is False]
    assert "use qo 9.9.0 or newer" in str(findings)
    assert len(await newer.unknown()) == 7


async def test_a_control_that_this_build_does_not_know_is_preserved() -> None:
    engine = MemoryEngine()
    await engine.open()
    await engine.write_note("control", b'{"paused": true, "moonlit": [1, {"a": 2}]}', expected=ANY)
    await notes.change(engine, "control", notes.Controls, lambda control: replace(control, paused=False))
    note = await engine.read_note("control")
    assert note is not None
    assert json.loads(note.data)["moonlit"] == [1, {"a": 2}] and not json.loads(note.data)["paused"]


def test_the_first_write_of_a_newer_build_raises_the_format_of_the_layout_tasks() -> None:
    async def upgrade() -> None:
        bucket = MemoryBucket(fast_time.loop_clock)
        await bucket.put(layout.FORMAT_KEY, b'{"format": 1, "since": 1, "qo": "0.0.9"}', expected=ANY)
        engine = ObjectPerTaskEngine(bucket)
        await engine.open()
        assert await _recorded(bucket) == Format(format=1, since=1, qo="0.0.9"), "opening changes nothing"
        began = bucket.now()
        await engine.add([new()])
        await engine.close()
        assert await _recorded(bucket) == format_of(layout.FORMAT, additive=layout.ADDITIVE)
        recorded, task = await bucket.get(layout.FORMAT_KEY), await bucket.get(task_key(task_id(0)))
        assert recorded is not None and recorded.written_at == began
        assert task is not None and task.written_at > began + layout.CHECK_INTERVAL, "older builds know it now"
        await engine.write_note("n", b"", expected=ANY)
        assert bucket.now() == task.written_at, "it waits once"

    fast_time.run(upgrade())


def test_a_second_process_of_a_newer_build_waits_as_long_as_the_first() -> None:
    async def upgrade() -> None:
        bucket = MemoryBucket(fast_time.loop_clock)
        await bucket.put(layout.FORMAT_KEY, b'{"format": 1, "since": 1, "qo": "0.0.9"}', expected=ANY)
        began = bucket.now()
        first, second = ObjectPerTaskEngine(bucket), ObjectPerTaskEngine(bucket)
        await first.open()
        adding = asyncio.create_task(first.add([new(0)]))
        await fast_time.pass_time(5)
        await second.open()
        await second.add([new(1)])
        await adding
        for n in range(2):
            task = await bucket.get(task_key(task_id(n)))
            assert task is not None and task.written_at > began + layout.CHECK_INTERVAL
        third, before = ObjectPerTaskEngine(bucket), bucket.now()
        await third.open()
        await third.add([new(2)])
        assert bucket.now() == before, "older builds know it by now"

    fast_time.run(upgrade())


async def _recorded(bucket: MemoryBucket) -> Format:
    blob = await bucket.get(layout.FORMAT_KEY)
    assert blob is not None
    return msgspec.json.decode(blob.data, type=Format)


async def test_a_queue_with_a_damaged_object_can_be_opened() -> None:
    bucket = MemoryBucket()
    engine = OneObjectEngine(bucket)
    await engine.add([new(0, type="first"), new(1)])
    blob = await bucket.get("queue.json")
    assert blob is not None
    await bucket.put("queue.json", blob.data.replace(b"first", b"forst"), expected=ANY)
    restarted = OneObjectEngine(bucket)
    await restarted.open()
    assert [task.id for task in await claim(restarted)] == [task_id(1)]


def test_additive_steps_keep_the_oldest_usable_format() -> None:
    assert format_of(3) == Format(format=3, since=3, qo=__version__)
    assert format_of(3, additive={3}).since == 2
    assert format_of(3, additive={2, 3}).since == 1


def test_a_format_without_a_name_is_refused_as_well() -> None:
    check_format("here", Format(format=5, since=4), 4)
    with pytest.raises(NewerFormat, match=r"here was written by a newer qo .*; upgrade qo"):
        check_format("here", Format(format=5), 4)
