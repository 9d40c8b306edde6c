"""Engines and connections whose callers write in their own threads."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import apsw

from qo.clock import system_clock
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite.direct_connection import DirectConnection
from qo.engines.sqlite.file import OpenFile
from qo.engines.sqlite.file_locks import acquire_locks, release_locks
from qo.sqlite_tables.reader import SqliteReader
from qo.testing.samples import new


@contextmanager
def opened(path: Path) -> Iterator[SqliteEngine]:
    """An engine that has added the task 'first' directly, for a test without an event loop."""
    engine = SqliteEngine(path)
    with asyncio.Runner() as runner:
        runner.run(engine.open())
        try:
            engine.add_directly([new("first")])
            engine.add_directly([new("first")])
            yield engine
        finally:
            runner.run(engine.close())


def rows(path: Path) -> dict[str, int]:
    """Each task's number of events, as another connection sees them."""
    db = apsw.Connection(str(path))
    try:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        reader = SqliteReader(db)
        ids = [id for (id,) in db.execute("SELECT id FROM tasks UNION ALL SELECT id FROM unindexed")]
        stored = {id: len(reader.history(id)) for id in ids}
        assert sum(reader.count().values()) == len(stored) == len(ids)
        return stored
    finally:
        db.close()


@contextmanager
def write_locked(path: Path) -> Iterator[None]:
    """Hold the lock of an engine that writes, as another process would."""
    locks = acquire_locks(path)
    steps = locks.borrow_steps(f"{path}-shm")
    _run(steps.lock)
    try:
        yield
    finally:
        _run(steps.unlock)
        locks.return_steps(steps)
        release_locks(locks, lambda: None)


def _run(steps: Sequence[tuple[Any, ...]]) -> None:
    for function, *arguments in steps:
        function(*arguments)


@contextmanager
def direct(path: Path) -> Iterator[tuple[DirectConnection, Lock]]:
    """Another connection of this kind on a file that an engine has open, and the lock of its callers."""
    locks, lock = acquire_locks(path), Lock()
    steps = locks.borrow_steps(f"{path}-shm")
    connection = DirectConnection(path, OpenFile(path, path, locks, system_clock), lock, steps, lambda: None)
    try:
        yield connection, lock
    finally:
        locks.return_steps(steps)
        release_locks(locks, connection.close)
