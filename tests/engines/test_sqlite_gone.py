"""A file that is deleted, moved or replaced while it is open: no write is acknowledged that is not at the path."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from qo.clock import system_clock
from qo.engines.sqlite import SqliteEngine, file_locks
from qo.engines.sqlite.file import OpenFile
from qo.engines.sqlite.file_locks import acquire_locks, release_locks
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Filter, complete, renew
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, stored, task_id
from tests.engines.file_users import count_with_sqlite3, during_commits, file_users


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "qo.db"


@pytest.fixture
async def engine(path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.add([new("before")])
    yield engine
    await engine.close()


@pytest.fixture
async def settled_engine(path: Path) -> AsyncIterator[SqliteEngine]:
    """Its folder last changed an hour ago, by the engine's clock. Only a folder that changes is read again."""
    engine = SqliteEngine(path, lambda: system_clock() + 3600)
    await engine.open()
    await engine.add([new("before")])
    yield engine
    await engine.close()


def delete(path: Path) -> None:
    path.unlink()


def delete_all(path: Path) -> None:
    for name in path.parent.glob("qo.db*"):
        name.unlink()


def move(path: Path) -> None:
    path.rename(path.parent / "elsewhere.db")


def move_back(path: Path) -> None:
    (path.parent / "elsewhere.db").rename(path)


def replace_with_copy(path: Path) -> None:
    shutil.copy(path, path.parent / "copy")
    (path.parent / "copy").rename(path)


def delete_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


def delete_log(path: Path) -> None:
    Path(f"{path}-wal").unlink(missing_ok=True)


def delete_shared_memory(path: Path) -> None:
    Path(f"{path}-shm").unlink()


HARMS = [delete, delete_all, move, replace_with_copy, delete_folder, delete_log, delete_shared_memory]


@pytest.mark.parametrize("harm", HARMS)
async def test_no_write_to_a_missing_file_is_acknowledged(
    engine: SqliteEngine, path: Path, harm: Callable[[Path], None]
) -> None:
    (held,) = await claim(engine, limit=1)
    harm(path)
    says = r"qo\.db(-wal|-shm)? was deleted(, moved)? or replaced while this process had it open"
    for attempt in (
        lambda: engine.add([new(1)]),
        lambda: engine.claim(claim_request()),
        lambda: engine.apply([complete(held)]),
        lambda: engine.apply([renew(held, 30.0)]),
        lambda: engine.delete([task_id("before")]),
        lambda: engine.write_note("n", b"", expected="*"),
        lambda: engine.get([task_id("before")]),
        lambda: engine.find(Filter(), limit=1),
    ):
        with pytest.raises(StorageError, match=says):
            await attempt()


@pytest.mark.parametrize("harm", HARMS)
async def test_a_folder_that_was_unchanged_for_long_is_checked_too(
    settled_engine: SqliteEngine, path: Path, harm: Callable[[Path], None]
) -> None:
    before = path.parent.stat()
    await settled_engine.add([new(1)])
    assert await asyncio.to_thread(settled_engine.add_directly, [new("directly")])
    harm(path)
    with suppress(FileNotFoundError):  # as a backup that is restored sets it
        os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    for n in (2, 3):
        with pytest.raises(StorageError, match="nothing of this call was stored"):
            await asyncio.to_thread(settled_engine.add_directly, [new(n)])
        with pytest.raises(StorageError, match="nothing of this call was stored"):
            await settled_engine.add([new(n)])


async def test_other_files_in_the_folder_may_change(settled_engine: SqliteEngine, path: Path) -> None:
    for n in range(5):
        (path.parent / "other").touch()
        assert await settled_engine.add([new(2 * n)]) == [(task_id(2 * n), True)]
        (path.parent / "other").unlink()
        assert await settled_engine.add([new(2 * n + 1)]) == [(task_id(2 * n + 1), True)]


@pytest.mark.usefixtures("engine")  # it has the file open
@pytest.mark.parametrize("harm", [delete, move, replace_with_copy, delete_log, delete_shared_memory])
async def test_a_folder_that_does_not_record_changes_is_checked_every_second(
    path: Path, harm: Callable[[Path], None]
) -> None:
    """As on some FUSE file systems and on vfat, or if a file is mounted over another."""
    elapsed = ManualClock()
    locks = acquire_locks(path)
    try:
        file = OpenFile(path, path, locks, lambda: system_clock() + 3600, elapsed)
        file.folder = str(path.parent.parent)  # nothing changes there
        assert file.problem() == ""
        harm(path)
        elapsed.advance(1)
        for _ in range(2):
            assert "was deleted" in file.problem()
    finally:
        release_locks(locks, lambda: None)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("seconds", "is_trusted"), [(0.05, False), (0.2, True)])
async def test_a_folder_is_trusted_soon_after_its_last_change(path: Path, seconds: float, is_trusted: bool) -> None:
    """Where its time of change is exact. A folder in which nothing changes shows whether the files are checked."""
    elapsed, folder = ManualClock(), path.parent.parent
    while folder.stat().st_ctime_ns % 1_000_000 == 0:  # as on a coarse file system
        (folder / "other").touch()
        (folder / "other").unlink()
    now = folder.stat().st_ctime + seconds
    locks = acquire_locks(path)
    try:
        file = OpenFile(path, path, locks, lambda: now, elapsed)
        file.folder = str(folder)
        assert file.problem() == ""
        move(path)
        assert (file.problem() == "") is is_trusted
        elapsed.advance(1)
        assert "was deleted" in file.problem()
        move_back(path)
    finally:
        release_locks(locks, lambda: None)


async def test_a_file_that_disappears_during_a_commit_leaves_the_outcome_unknown(
    engine: SqliteEngine, path: Path
) -> None:
    with (
        during_commits(engine, lambda: path.rename(path.parent / "away")),
        pytest.raises(OutcomeUnknown, match=r"deleted, moved or replaced .* this call may be lost"),
    ):
        await engine.add([new(1)])
    with pytest.raises(StorageError, match="nothing of this call was stored"):
        await engine.add([new(1)])


async def test_writes_succeed_again_when_the_file_is_put_back(engine: SqliteEngine, path: Path) -> None:
    move(path)
    with pytest.raises(StorageError, match="put it back, or restart this process"):
        await engine.add([new(1)])
    move_back(path)
    assert await engine.add([new(1)]) == [(task_id(1), True)]
    assert (await stored(engine, "before")).id == task_id("before")


async def test_a_reopened_engine_uses_the_file_at_the_path(engine: SqliteEngine, path: Path) -> None:
    delete_all(path)
    other = SqliteEngine(path)
    await other.open()
    assert await other.add([new(1)]) == [(task_id(1), True)]
    with pytest.raises(StorageError, match="restart this process"):
        await engine.add([new(2)])
    await engine.close()
    assert await other.add([new(3)]) == [(task_id(3), True)]
    assert {task.id for task in await other.find(Filter(), limit=9)} == {task_id(1), task_id(3)}
    await other.close()
    await engine.open()
    assert {task.id for task in await engine.find(Filter(), limit=9)} == {task_id(1), task_id(3)}


async def test_a_link_to_the_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "real" / "qo.db")
    engine = SqliteEngine(tmp_path / "link.db")
    await engine.open()
    assert await engine.add([new()]) == [(task_id(0), True)]
    (tmp_path / "link.db").unlink()
    (tmp_path / "link.db").symlink_to(tmp_path / "other.db")
    with pytest.raises(StorageError, match="was deleted, moved or replaced"):
        await engine.add([new(1)])
    await engine.close()


async def test_a_link_to_an_existing_queue_opens_it(engine: SqliteEngine, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    linked = SqliteEngine(link)
    await linked.open()
    assert (await stored(linked, "before")).id == task_id("before")
    await linked.add([new(1)])
    await linked.close()
    assert (await stored(engine, 1)).id == task_id(1)


async def test_without_ofd_locks_a_missing_log_is_detected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "_OFD", False)  # as on systems other than Linux
    engine = SqliteEngine(path)
    await engine.open()
    await engine.add([new(n) for n in range(5)])
    assert count_with_sqlite3(path) == 5  # in this process: drops its locks and deletes the log
    delete_log(path)  # newer versions of SQLite notice that the log is in use, and keep it
    with pytest.raises(StorageError, match=r"qo\.db-wal was deleted or replaced"):
        await engine.add([new(5)])
    await engine.close()
    await engine.open()
    assert await engine.add([new(5)]) == [(task_id(5), True)]
    await engine.close()


def test_a_forked_child_does_not_keep_the_locks_of_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with file_users(path, 1) as (ours,):
        ours.open()
        ours.add(0)
        child = ours.fork()
    try:
        # Closing the last connection deletes the log only if no process holds a lock.
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM tasks").fetchone() == (1,)
        assert not Path(f"{path}-wal").exists()
    finally:
        os.kill(child, 9)


async def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match="is not a regular file; name another"):
        await SqliteEngine(tmp_path / "pipe").open()
