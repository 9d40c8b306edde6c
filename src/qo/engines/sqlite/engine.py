"""The SQLite engine: the port on one side, two desks and a watch on the other."""

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

import apsw

from qo.clock import Clock, system_clock
from qo.damage import DamageLog
from qo.engine import Engine
from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.connection_thread import ConnectionCall, ConnectionThread, DirectCall
from qo.engines.sqlite.file import check_file, connect, open_log, prepare
from qo.engines.sqlite.file_locks import FileLocks, acquire_locks, release_locks
from qo.engines.sqlite.open_file import OpenFile
from qo.engines.sqlite.watch import FileWatch
from qo.errors import StorageError
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    page_start,
    release,
)
from qo.sqlite_tables.damage import BadRow, DamageFound, around_damage
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import Writer

T = TypeVar("T")


class _Desks:
    """What an open engine has: a writer, a reader and a watch, each with its own connection."""

    def __init__(self, path: Path, clock: Clock) -> None:
        check_file(path)
        self.pid = os.getpid()
        self._is_closing = False
        self._connections: list[apsw.Connection] = []
        self._locks = _lock(path)
        try:
            self._file = self._connect(path)
        except BaseException:
            release_locks(self._locks, self._disconnect)
            raise
        writing, reading, watching = self._connections
        self.watch = FileWatch(path, watching, clock)
        self.writer = ConnectionThread(
            "qo sqlite writer", Writer(path, writing, clock, self.watch.tell, self._file).serve
        )
        self.reader = ConnectionThread("qo sqlite reader", _reader(path, SqliteReader(reading), self._file))

    def _connect(self, path: Path) -> OpenFile:
        self._connections += [connect(path), connect(path), connect(path, patient=False)]
        writing = self._connections[0]
        real = open_log(writing, path)
        try:
            self._locks.keep_shared_memory(Path(f"{real}-shm"))
            return OpenFile(path, real, self._locks)
        except OSError as error:
            raise StorageError(f"{path} went away while it was opened: {error}; try again") from error

    def close_later(self) -> None:
        """In a thread of its own: the garbage collector may call this while the current thread holds a lock."""
        if self.pid == os.getpid() and not self._is_closing:
            with suppress(RuntimeError):  # the interpreter is leaving and starts no more threads
                Thread(target=self.close, name="qo sqlite closer", daemon=True).start()

    def close(self) -> None:
        self._is_closing = True
        self.writer.stop()
        self.reader.stop()
        self.writer.join()
        self.reader.join()
        self.watch.close()
        if self._file.trouble():  # what is in a log that others do not see must not overwrite what they wrote since
            for connection in self._connections[:2]:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        release_locks(self._locks, self._disconnect)

    def _disconnect(self) -> None:
        for connection in reversed(self._connections):  # the writer last: whoever closes last tidies the log away
            connection.close()


def _lock(path: Path) -> FileLocks:
    """Create or update the file, then lock it. A connection from before the lock may have a log that was deleted since,
    so it is closed.
    """
    first = connect(path)
    try:
        prepare(first, path)
        return acquire_locks(path)
    except OSError as error:
        raise StorageError(f"{path} went away while it was opened: {error}; try again") from error
    finally:
        first.close()


def _reader(
    path: Path, reading: SqliteReader, file: OpenFile
) -> Callable[[Sequence[ConnectionCall | DirectCall]], None]:
    def serve(jobs: Sequence[ConnectionCall | DirectCall]) -> None:
        for job in jobs:
            try:
                job.answer = job.work(reading)
                file.check()
            except apsw.Error as error:
                job.error = to_qo_error(path, error)
                job.error.__cause__ = error
            except Exception as error:  # noqa: BLE001 - goes to the caller
                job.error = error

    return serve


class SqliteEngine(Engine):
    def __init__(self, path: Path, clock: Clock = system_clock) -> None:
        self._path = path
        self._clock = clock
        self._desks: _Desks | None = None
        self._opening = Lock()
        self._damage_log = DamageLog()
        self._repeating: set[str] = set()  # leases whose claim is being asked for again

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._desks is None:
                self._desks = _Desks(self._path, self._clock)
                # Nobody may have called close(): then the file is closed when the engine is collected.
                weakref.finalize(self, self._desks.close_later).atexit = False

    async def close(self) -> None:
        """Do what was asked for, then let go of the file."""
        desks, self._desks = self._desks, None
        if desks is None or desks.pid != os.getpid():  # in a forked child there is nothing to let go of
            return
        with suppress(StorageError):  # a pass through the queue: tasks of abandoned claims are on their way back now
            await desks.writer.ask(_nothing)
        try:
            await asyncio.to_thread(desks.close)
        except RuntimeError:  # the interpreter is leaving and starts no more threads; then waiting here hurts nobody
            desks.close()

    def _at_work(self) -> _Desks:
        desks = self._desks
        if desks is None:
            raise StorageError(f"{self._path} is not open; call open() first")
        if desks.pid != os.getpid():
            raise StorageError(f"{self._path} was opened before a fork; open an engine of its own in this process")
        return desks

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return await self._write(lambda table: table.add(tasks))

    @property
    def adds_directly(self) -> bool:
        return True

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        writer = self._at_work().writer
        while True:
            try:
                added: list[Added] = writer.call(lambda table: table.add(tasks))
            except DamageFound as found:
                self._damage_log.report(writer.call(methodcaller("set_aside", found.rows)))
            else:
                return added

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the transaction claims nothing; one cancelled after it hands its tasks back."""
        if request.is_repeat:
            self._repeating.add(request.lease_id)
        try:
            return await self._write(lambda table: table.claim(request), self._hand_back(request))
        finally:
            self._repeating.discard(request.lease_id)

    def _hand_back(self, request: ClaimRequest) -> Callable[[list[Task]], None]:
        """For a claim whose caller left: waiting for its lease to expire would count as a failure of the tasks."""
        writer = self._at_work().writer

        def hand_back(tasks: list[Task]) -> None:
            if tasks and request.lease_id not in self._repeating:
                changes = [release(task, None) for task in tasks]
                done = writer.ask(lambda table: table.apply(changes))
                done.add_done_callback(asyncio.Future.exception)  # if this fails too, the lease expires

        return hand_back

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self._write(lambda table: table.apply(changes))

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._write(lambda table: table.delete(ids))

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self._write(lambda table: table.write_note(name, data, expected))

    async def drop_note(self, name: str) -> None:
        await self._write(lambda table: table.drop_note(name))

    async def _write(self, work: Callable[[SqliteTable], T], abandoned: Callable[[T], None] | None = None) -> T:
        return await around_damage(lambda: self._at_work().writer.ask(work, abandoned), self._set_aside)

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._at_work().writer.ask(lambda table: table.set_aside(bad)))

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self._read(lambda reading: reading.get(ids))

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        return await self._read(lambda reading: reading.find(where, limit, start, self._clock()))

    async def count(self) -> Counts:
        return await self._read(SqliteReader.count)

    async def history(self, task_id: str) -> list[Event]:
        return await self._read(lambda reading: reading.history(task_id))

    async def now(self) -> float:
        return self._clock()

    async def read_note(self, name: str) -> Note | None:
        return await self._read(lambda reading: reading.read_note(name))

    async def notes(self, prefix: str) -> list[Note]:
        return await self._read(lambda reading: reading.notes(prefix))

    async def _read(self, work: Callable[[SqliteReader], T]) -> T:
        return await around_damage(lambda: self._at_work().reader.ask(work), self._set_aside)

    # --- waiting

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._at_work().watch.wait(request, timeout, self._stage)

    async def _stage(self) -> None:
        await self._write(SqliteTable.stage)


def _nothing(_: Any) -> None: ...


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:
    return SqliteEngine(path_of(url), clock)
