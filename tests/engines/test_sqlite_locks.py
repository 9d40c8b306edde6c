"""What was acknowledged stays, whatever else opens and closes the file: POSIX drops all locks that a process holds on a
file when it closes any descriptor of it, and then another process may delete the write-ahead log.
"""

import asyncio
import mmap
import os
import threading
from pathlib import Path

import apsw

from qo.engines import examine
from qo.engines.sqlite import SqliteEngine, schema_of
from qo.testing.samples import new, task_id
from tests.engines.file_users import count_with_sqlite3, during_commits, file_users

_INDEX_HEADER = 48  # bytes: the first copy of the header in the shared memory; the second copy follows it


def kept(path: Path) -> set[str]:
    """The ids of all tasks that a new process finds."""
    db = apsw.Connection(str(path))
    try:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        return {row[0] for row in db.execute("SELECT id FROM tasks UNION SELECT id FROM unindexed")}
    finally:
        db.close()


def has_log(path: Path) -> bool:
    return Path(f"{path}-wal").exists()


def ids(*names: int) -> set[str]:
    return {task_id(name) for name in names}


def test_two_clients_in_one_process_keep_the_log_while_another_process_reads(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with file_users(path, 2) as (ours, theirs):
        ours.open()
        assert ours.add(0, 1)
        ours.open()
        assert theirs.count_with_sqlite3() == 2
        assert len(ours.add(*range(2, 12))) == 10
        assert theirs.count_with_sqlite3() == 12
    assert kept(path) == ids(*range(12))


def test_closing_one_of_two_clients_keeps_the_log(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with file_users(path, 2) as (ours, theirs):
        ours.open()
        ours.open()
        ours.close()
        assert theirs.count_with_sqlite3() == 0
        assert len(ours.add(*range(5))) == 5
    assert kept(path) == ids(*range(5))


async def test_doctor_and_migrate_keep_the_locks(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    engine = SqliteEngine(path)
    await engine.open()
    with file_users(path, 1) as (theirs,):
        await engine.add([new(0)])
        assert all(finding.ok is not False for finding in await examine(f"sqlite:///{path}"))
        assert (await schema_of(f"sqlite:///{path}")).found
        await asyncio.to_thread(theirs.count_with_sqlite3)
        assert has_log(path), "another process could delete the log"
        await engine.add([new(1)])
        assert await asyncio.to_thread(theirs.count_with_sqlite3) == 2
    await engine.close()
    assert not has_log(path), "the last to close tidies the log away"
    assert kept(path) == ids(0, 1)


def test_pythons_sqlite3_in_the_same_process_keeps_the_log(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with file_users(path, 1) as (ours,):
        ours.open()
        assert len(ours.add(*range(5))) == 5
        assert ours.count_with_sqlite3() == 5
        assert len(ours.add(*range(5, 10))) == 5
    assert kept(path) == ids(*range(10))


def test_pythons_sqlite3_in_the_same_process_and_then_in_another_keeps_the_log(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    with file_users(path, 2) as (ours, theirs):
        ours.open()
        assert len(ours.add(*range(5))) == 5
        assert ours.count_with_sqlite3() == 5
        assert theirs.count_with_sqlite3() == 5
        assert len(ours.add(*range(5, 10))) == 5
        assert theirs.count_with_sqlite3() == 10
    assert kept(path) == ids(*range(10))


async def test_no_reader_recovers_the_log_while_an_engine_commits(tmp_path: Path) -> None:
    """Another SQLite in this process is not stopped by this engine's locks, and would undo the commits that follow."""
    path = tmp_path / "qo.db"
    engine = SqliteEngine(path)
    await engine.open()
    await engine.add([new(0)])
    shared = os.open(f"{path}-shm", os.O_RDWR)
    try:
        with mmap.mmap(shared, 0) as memory:
            before, counts = memory[:_INDEX_HEADER], list[int]()
            await engine.add([new(1)])
            after = memory[:_INDEX_HEADER]
            reader = threading.Thread(target=lambda: counts.append(count_with_sqlite3(path)))

            def commit() -> None:
                memory[:_INDEX_HEADER] = before  # as if the writer was suspended between the two copies of the header
                reader.start()
                reader.join(0.3)
                has_recovered.append(not reader.is_alive())
                memory[:_INDEX_HEADER] = after

            has_recovered = list[bool]()
            with during_commits(engine, commit):
                await engine.add([new(2)])
            reader.join(20)
            memory[:_INDEX_HEADER] = before  # as if a writer died there: the next one rebuilds the index
            await engine.add([new(3)])
        assert has_recovered == [False]
        assert counts in ([2], [3])
    finally:
        await engine.close()
        os.close(shared)
    assert kept(path) == ids(0, 1, 2, 3)


def test_processes_that_read_continuously_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path, rounds = tmp_path / "qo.db", 60
    with file_users(path, 3) as users:
        for user in users:
            user.open()
            user.keep_reading()
        for turn in range(3):
            for number, user in enumerate(users):
                start = (turn * 3 + number) * rounds
                user.send("add", *range(start, start + rounds))
            assert [len(user.answer()) for user in users] == [rounds] * 3
    assert kept(path) == ids(*range(9 * rounds))
    assert count_with_sqlite3(path) == 9 * rounds
