"""A process that uses one SQLite file on request: with qo, and with Python's own `sqlite3`."""

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from qo.engines.sqlite import SqliteEngine
from qo.model import Added
from qo.testing.samples import new

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload([__name__])
_DEADLINE = 60.0  # seconds for one command


class FileUser:
    """The test's end: each method runs in the process and returns when it is done there."""

    def __init__(self, path: Path) -> None:
        self._pipe, theirs = _forkserver.Pipe()
        self._process = _forkserver.Process(target=_serve, args=(path, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def open(self) -> None:
        """Open another engine on the file."""
        self._ask("open")

    def close(self) -> None:
        """Close the engine that was opened last."""
        self._ask("close")

    def add(self, *names: int | str) -> list[str]:
        """Add tasks with the engine that was opened first, one per call, every second one directly.

        Returns the acknowledged ids.
        """
        return list(self._ask("add", *names))

    def count_with_sqlite3(self) -> int:
        """Count the tasks with Python's own sqlite3: connect, read, close."""
        return int(self._ask("count_with_sqlite3"))

    def keep_reading(self) -> None:
        """Do the same repeatedly in a thread, until the process ends."""
        self._ask("keep_reading")

    def fork(self) -> int:
        """Fork the process; the child only sleeps. Returns its process id."""
        return int(self._ask("fork"))

    def kill(self) -> None:
        self._process.kill()
        self._process.join(_DEADLINE)
        assert self._process.exitcode == -signal.SIGKILL, f"the process ended by itself: {self._process.exitcode}"

    def _ask(self, *command: Any) -> Any:
        self.send(*command)
        return self.answer()

    def send(self, *command: Any) -> None:
        self._pipe.send(command)

    def answer(self) -> Any:
        assert self._pipe.poll(_DEADLINE), "the process does not answer"
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


@contextmanager
def file_users(path: Path, number: int) -> Iterator[list[FileUser]]:
    users = [FileUser(path) for _ in range(number)]
    try:
        yield users
    finally:
        for user in users:
            user.kill()


@contextmanager
def during_commits(engine: SqliteEngine, work: Callable[[], object]) -> Iterator[None]:
    """Call `work` in every commit of the engine, before it is durable."""
    writing, _, _, *direct = engine.connections
    for connection in (writing, *direct):
        connection.set_commit_hook(lambda: bool(work()) and False)
    try:
        yield
    finally:
        for connection in (writing, *direct):
            connection.set_commit_hook(None)


def count_with_sqlite3(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        sql = "SELECT (SELECT count(*) FROM tasks) + (SELECT count(*) FROM unindexed)"
        count: int = db.execute(sql).fetchone()[0]
    return count


def _serve(path: Path, pipe: Connection) -> None:
    user = _User(path)
    with asyncio.Runner() as runner:
        while True:
            name, *values = pipe.recv()
            try:
                pipe.send(runner.run(getattr(user, name)(*values)))
            except Exception as error:  # noqa: BLE001 - goes to the test
                pipe.send(error)


class _User:
    """The process's end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._engines: list[SqliteEngine] = []

    async def open(self) -> None:
        self._engines.append(SqliteEngine(self._path))
        await self._engines[-1].open()

    async def close(self) -> None:
        await self._engines.pop().close()

    async def add(self, *names: int | str) -> list[str]:
        engine, added = self._engines[0], list[Added]()
        for turn, name in enumerate(names):
            added += engine.add_directly([new(name)]) if turn % 2 else await engine.add([new(name)])
        return [task_id for task_id, _ in added]

    async def count_with_sqlite3(self) -> int:
        return count_with_sqlite3(self._path)

    async def fork(self) -> int:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, b".")
            signal.pause()
        os.read(reading, 1)
        return child

    async def keep_reading(self) -> None:
        def keep_on() -> None:
            while True:
                count_with_sqlite3(self._path)

        threading.Thread(target=keep_on, daemon=True).start()
