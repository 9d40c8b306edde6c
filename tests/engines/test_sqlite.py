"""The SQLite engine: the contract, its address, what it keeps, other processes, forks and lanes."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.file import path_of
from qo.errors import InvalidSetting, StorageError
from qo.model import Filter, Status, after_error, complete
from qo.testing import EngineContract, ManualClock
from qo.testing.samples import claim, claim_one, claim_request, new, stored, task_id
from tests.conditions import until
from tests.engines.damage import damage_sqlite
from tests.engines.forked_child import errors_in_child
from tests.engines.sqlite_engines import clock, connection, engine

__all__ = ["clock", "engine"]  # fixtures


class TestSqlite(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
        engine = SqliteEngine(tmp_path / "qo.db", clock)
        await engine.open()
        yield engine
        await engine.close()

    async def damage(self, engine: Engine, task_id: str) -> None:
        await damage_sqlite(engine, task_id, "retry = '{\"half'")


# --- the address


def test_a_url_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert path_of("sqlite:///a/b.db") == tmp_path / "a/b.db"
    assert path_of("sqlite:////var/lib/my%20queue.db") == Path("/var/lib/my queue.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "sqlite:///queue.db"),
        ("sqlite:///", "does not name a file"),
        ("sqlite://queue.db", "does not name a file"),
        ("sqlite:///queue.db?mode=rw", "no options"),
        ("sqlite:///:memory:", "memory://"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        open_engine(url)


async def test_another_process_sees_which_lane_comes_first(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    await engine.add([new(0, type="a"), new(1, type="b"), new(2, type="a"), new(3, type="b")])
    assert [task.id for task in await claim(other, limit=1)] == [task_id(0)]
    await engine.add([new(4, type="b", delay=60.0)])  # not ready
    await engine.add([new(5, type="b")])  # after the first one
    await engine.add([new(6, type="a", ageing=0.0)])  # before the first one
    assert [task.id for task in await claim(other, limit=1)] == [task_id(6)]
    assert [task.id for task in await claim(other, limit=1)] == [task_id(1)]
    await engine.add([new(7, type="c")])  # a new lane
    assert [task.id for task in await claim(other, limit=9)] == [task_id(n) for n in (2, 3, 5, 7)]
    await other.close()


async def test_numbers_and_lanes_of_another_process_are_read(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    """A process uses cached rows only while no other process writes."""
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    for n in range(6):
        one, another = (engine, other) if n % 2 else (other, engine)
        assert await one.add([new(2 * n, type=f"type{n}")]) == [(task_id(2 * n), True)]
        assert await another.add([new(2 * n + 1, type=f"type{n}")]) == [(task_id(2 * n + 1), True)]
        assert await another.add([new(2 * n)]) == [(task_id(2 * n), False)]
    assert len(await engine.count()) == 6
    assert len(await claim(other, limit=20)) == 12
    await other.close()


# --- what is kept


async def test_any_text_and_bytes_are_stored_unchanged(engine: SqliteEngine) -> None:
    odd = 'quote " back \\ line\n\u2028 é 😀'
    await engine.add([new(0, payload=bytes(range(256)), trace_id=odd), new(1, payload=b"")])
    tasks = sorted(await claim(engine), key=lambda task: task.id)
    assert [task.payload for task in tasks] == [bytes(range(256)), b""]
    retry = replace(after_error(tasks[0], "", random=0.1), error=odd)
    await engine.apply([retry, complete(tasks[1], bytes(range(255, -1, -1)))])
    first, second = await stored(engine, 0), await stored(engine, 1)
    assert (first.error, first.trace_id, second.result) == (odd, odd, bytes(range(255, -1, -1)))


async def test_a_batch_of_several_statements_is_complete(engine: SqliteEngine) -> None:
    assert all(added.new for added in await engine.add([new(n, payload=b"%d" % n) for n in range(1_333)]))
    tasks = await claim(engine, limit=1_000)
    assert all(task.payload == b"%d" % int(task.id[:8], 16) for task in tasks)
    assert all(await engine.apply([complete(task, task.payload) for task in tasks]))
    found = await engine.find(Filter(), limit=2_000)
    assert [task.id for task in found] == [task_id(n) for n in reversed(range(1_333))]
    assert sum(task.result == task.payload for task in found) == 1_000


async def test_an_engine_reads_what_another_wrote(engine: SqliteEngine, clock: ManualClock, tmp_path: Path) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    await engine.add([new(0, type="seen")])
    await other.add([new(1, type="unseen by the first")])
    assert {task.type for task in await engine.find(Filter(), limit=9)} == {"seen", "unseen by the first"}
    assert len(await engine.claim(claim_request())) == 2
    await other.close()
    with pytest.raises(StorageError, match="not open"):
        await other.count()


async def test_an_engine_can_be_opened_again_after_closing(engine: SqliteEngine) -> None:
    await engine.add([new()])
    await engine.close()
    await engine.close()
    await engine.open()
    assert (await stored(engine)).status is Status.PENDING


# --- forks and exits


async def test_a_forked_child_must_open_its_own_engine(engine: SqliteEngine) -> None:
    await engine.add([new()])
    calls = (engine.count(), engine.claim(claim_request()), engine.wait(claim_request(), 1))
    answers = await errors_in_child(calls)
    assert len(answers) == 3 and all("before a fork" in answer for answer in answers), answers
    assert len(await claim(engine)) == 1


async def test_an_unreferenced_engine_ends_its_threads(tmp_path: Path) -> None:
    await asyncio.to_thread(int)  # starts a thread of the event loop's own executor
    before = threading.enumerate()
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new()])
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in threads] == ["qo sqlite writer", "qo sqlite reader"]
    assert all(thread.daemon for thread in threads)
    del engine
    gc.collect()
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
    assert not any(thread.is_alive() for thread in threads)


async def test_an_unreferenced_engine_closes_its_file(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    await engine.add([new()])
    del engine
    gc.collect()
    await until(lambda: not _open_files(tmp_path))
    assert _names(tmp_path) == ["qo.db"], "the last to close tidies the log away"


def _names(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def _open_files(folder: Path) -> list[str]:
    """The open files of this process."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(f"{folder}/")]


async def test_a_lane_without_tasks_is_removed_and_can_be_added_again(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    try:
        for _ in range(2):
            await engine.add([new(n, type=f"t{n}") for n in range(3)])
            tasks = await claim(other, limit=3)
            assert [task.type for task in tasks] == ["t0", "t1", "t2"]
            await other.apply([complete(task) for task in tasks])
            assert await other.delete([task.id for task in tasks]) == [True] * 3
            assert not any((await engine.count()).values())
    finally:
        await other.close()
    assert len(connection(engine, 1).execute("SELECT n FROM lanes").fetchall()) == 1  # no number is used twice


async def test_a_lane_removed_between_two_claims_does_no_harm(
    engine: SqliteEngine, clock: ManualClock, tmp_path: Path
) -> None:
    other = SqliteEngine(tmp_path / "qo.db", clock)
    await other.open()
    try:
        await engine.add([new(0, type="gone"), new(1, type="gone"), new(2, type="kept"), new(3, type="kept")])
        assert (await claim_one(other)).id == task_id(0)  # its cache has another first task in that lane
        (task,) = await claim(engine, limit=1)
        (first,) = await engine.get([task_id(0)])
        assert first is not None
        await engine.apply([complete(task), complete(first)])
        assert await engine.delete([task_id(0), task_id(1)]) == [True, True]
        assert (await claim_one(other)).id == task_id(2)
    finally:
        await other.close()


async def test_a_lane_removed_while_its_last_task_is_read_does_no_harm(engine: SqliteEngine) -> None:
    await engine.add([new(0, type="gone"), new(1, type="kept")])
    task = await claim_one(engine, types=("gone",))
    await engine.apply([complete(task)])
    loop, deleted = asyncio.get_running_loop(), list[bool]()

    def delete(event: dict[str, Any]) -> None:
        if "FROM lanes" in event["sql"] and not deleted:
            deleted.extend(asyncio.run_coroutine_threadsafe(engine.delete([task.id]), loop).result(20))

    connection(engine, 1).trace_v2(apsw.SQLITE_TRACE_STMT, delete)
    (found,) = await engine.get([task.id])
    connection(engine, 1).trace_v2(0, None)
    assert deleted == [True]
    assert found is not None and found.type == "gone"
    assert await engine.get([task.id]) == [None]
