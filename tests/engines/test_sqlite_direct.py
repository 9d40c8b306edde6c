"""A task from plain code is written in the calling thread, with the same answers as on an event loop."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from qo.client import Client
from qo.clock import system_clock
from qo.engines.sqlite import SqliteEngine, file_locks
from qo.engines.sqlite.connection_thread import ConnectionThread
from qo.errors import NewerFormat, OutcomeUnknown, StorageError
from qo.model import after_error, reschedule
from qo.sqlite_tables.header import FILE_VERSION
from qo.testing import ManualClock
from qo.testing.samples import claim, new, task_id
from tests.conditions import until
from tests.engines.direct_writers import direct, opened, rows, write_locked
from tests.engines.file_users import during_commits
from tests.engines.test_sqlite_faults import FailingDisk, FailingFile


class Calls:
    """Counts the tasks that callers leave to the thread of the connection."""

    def __init__(self) -> None:
        self.number = 0


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls, original = Calls(), ConnectionThread.call

    def counted(thread: ConnectionThread, work: Callable[[Any], Any]) -> Any:
        calls.number += 1
        return original(thread, work)

    monkeypatch.setattr(ConnectionThread, "call", counted)
    return calls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qo.db"


def test_a_single_task_of_a_known_lane_is_written_in_the_calling_thread(path: Path, handed_over: Calls) -> None:
    with opened(path) as engine:
        before = handed_over.number
        for n in range(20):
            assert engine.add_directly([new(n, delay=n % 2)]) == [(task_id(n), True)]
        assert handed_over.number == before
        engine.add_directly([new("lane", type="other")])
        engine.add_directly([new("keyed", idempotency_key="k")])
        assert engine.add_directly([new(3)]) == [(task_id(3), False)]
        assert handed_over.number == before + 3
    assert rows(path) == dict.fromkeys(map(task_id, [*range(20), "first", "lane", "keyed"]), 1)


async def test_a_task_has_the_same_history_as_one_from_an_event_loop(path: Path) -> None:
    clock = ManualClock()
    engine = SqliteEngine(path, clock)
    await engine.open()
    await engine.add([new("first")])
    tasks = [new(0), new(1, delay=5.0), new(2, run_at=clock() + 5.0), new(3, run_at=clock() - 5.0)]
    for task in tasks:
        await asyncio.to_thread(engine.add_directly, [task])
        await engine.add([replace(task, id=f"{task.id}-in-a-loop")])
    for _ in range(2):  # before the first change of each task, and after three
        for task in tasks:
            history = await engine.history(task.id)
            assert history and history == await engine.history(f"{task.id}-in-a-loop")
            await engine.apply([reschedule(id, clock() + 9.0) for id in (task.id, f"{task.id}-in-a-loop")])
        clock.advance(10)
        await engine.apply([after_error(task, "no", random=0.5) for task in await claim(engine, limit=99)])
    await engine.close()


async def test_a_waiting_claim_is_woken(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    client = Client(engine)
    await client.enqueue("t")
    assert len(await client.dequeue("t")) == 1
    waiting = asyncio.create_task(client.dequeue("t", wait=60.0))
    added = await asyncio.to_thread(engine.add_directly, [client.new_task("t", b"1")])
    assert [task.id for task in await waiting] == [added[0].id]
    await engine.close()


# --- other writers


async def test_a_caller_waits_for_another_process_that_writes(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    engine.add_directly([new("first")])
    theirs = apsw.Connection(str(path))
    theirs.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(asyncio.to_thread(engine.add_directly, [new("second")]))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    theirs.execute("ROLLBACK")
    assert await waiting == [(task_id("second"), True)]
    theirs.close()
    await engine.close()


async def test_a_caller_waits_for_another_engine_that_writes(path: Path) -> None:
    engine = SqliteEngine(path)
    await engine.open()
    engine.add_directly([new("first")])
    with write_locked(path):
        waiting = asyncio.create_task(asyncio.to_thread(engine.add_directly, [new("second")]))
        assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    assert await waiting == [(task_id("second"), True)]
    await engine.close()


async def test_threads_that_close_the_engine_lose_nothing(path: Path) -> None:
    """A caller gets its receipt, or an error that says that nothing was stored."""
    acknowledged = set[str]()

    def keep_adding(engine: SqliteEngine, names: Iterator[int]) -> None:
        with suppress(StorageError):
            for n in names:
                acknowledged.update(added.id for added in engine.add_directly([new(n)]))

    names = count()
    for _ in range(5):
        engine = SqliteEngine(path)
        await engine.open()
        engine.add_directly([new(next(names))])
        threads = [asyncio.create_task(asyncio.to_thread(keep_adding, engine, names)) for _ in range(3)]
        already = len(acknowledged)
        await until(lambda: len(acknowledged) > already + 10)  # noqa: B023 - called in this turn
        await engine.close()
        await asyncio.gather(*threads)
    assert rows(path).keys() >= acknowledged


def test_a_caller_that_comes_after_close_unlocks_nothing_of_others(path: Path) -> None:
    with opened(path), ExitStack() as stack:
        is_due = False

        def clock() -> float:
            """Read between the moment at which a caller finds the engine open and its write."""
            nonlocal is_due
            if is_due:
                is_due = False
                closing = Thread(target=lambda: asyncio.run(engine.close()))
                closing.start()
                closing.join()
                stack.enter_context(write_locked(path))  # with the descriptors of the closed engine
            return system_clock()

        engine = SqliteEngine(path, clock)
        asyncio.run(engine.open())
        engine.add_directly([new("before")])
        is_due = True
        with pytest.raises(StorageError, match="closed"):
            engine.add_directly([new("late")])
        connection, _ = stack.enter_context(direct(path))
        assert not connection.add(new("refused"), 0.0), "the late caller unlocked the file"


# --- disks and files


def test_a_commit_that_could_not_be_flushed_is_not_acknowledged(path: Path) -> None:
    disk = FailingDisk()
    try:
        with opened(path) as engine:
            FailingFile.failing = True
            with pytest.raises(OutcomeUnknown, match="the disk reported an error; check it, then try again"):
                engine.add_directly([new("lost")])
            FailingFile.failing = False
            assert engine.add_directly([new("lost")]) == [(task_id("lost"), True)]
    finally:
        FailingFile.failing = False
        disk.unregister()
    assert rows(path) == {task_id("first"): 1, task_id("lost"): 1}


def test_a_file_that_disappears_leaves_no_wrong_answer(path: Path) -> None:
    with opened(path) as engine:
        with (
            during_commits(engine, lambda: path.rename(path.parent / "away")),
            pytest.raises(OutcomeUnknown, match=r"deleted, moved or replaced .* this call may be lost"),
        ):
            engine.add_directly([new(1)])
        with pytest.raises(StorageError, match="nothing of this call was stored"):
            engine.add_directly([new(2)])
        (path.parent / "away").rename(path)
        assert engine.add_directly([new(3)]) == [(task_id(3), True)]
    assert rows(path).keys() == {task_id("first"), task_id(1), task_id(3)}


def test_a_newer_format_is_refused(path: Path) -> None:
    with opened(path) as engine:
        db = apsw.Connection(str(path))
        db.execute("INSERT INTO formats (number, since, qo) VALUES (?1, ?1, '99')", (FILE_VERSION + 1,))
        db.execute(f"PRAGMA user_version = {FILE_VERSION + 1}")
        db.close()
        with pytest.raises(NewerFormat):
            engine.add_directly([new(1)])


def test_without_locks_of_open_files_it_works_too(
    path: Path, monkeypatch: pytest.MonkeyPatch, handed_over: Calls
) -> None:
    monkeypatch.setattr(file_locks, "_OFD", False)  # as on systems other than Linux
    with opened(path) as engine:
        before = handed_over.number
        assert engine.add_directly([new(1)]) == [(task_id(1), True)]
        assert handed_over.number == before


def test_engines_that_open_and_close_use_the_same_descriptors(path: Path) -> None:
    with opened(path):
        with opened(path):
            pass
        before = set(Path("/proc/self/fd").iterdir())
        for _ in range(3):
            with opened(path) as engine:
                engine.add_directly([new("more")])
        assert set(Path("/proc/self/fd").iterdir()) == before
