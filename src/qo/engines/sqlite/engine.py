"""The SQLite engine: two connection threads, a watch and a connection for direct callers behind the engine port."""

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import apsw

from qo.clock import Clock, system_clock
from qo.damage import DamageLog
from qo.engine import Engine
from qo.engines.sqlite.connection_thread import ConnectionCall, ConnectionThread, DirectCall
from qo.engines.sqlite.direct_connection import DirectConnection
from qo.engines.sqlite.file import OpenFile, check_file, connect, open_log, path_of, prepare
from qo.engines.sqlite.file_locks import FileLocks, WriteSteps, acquire_locks, release_locks
from qo.engines.sqlite.watch import FileWatch
from qo.engines.table_engine import Answer, TableEngine
from qo.errors import StorageError
from qo.model import Added, ClaimRequest, NewTask, Task, check_distinct, release
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import FILE_VERSION
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow, DamageFound, around_damage
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import Writer

log = logging.getLogger("qo.engines")


class _OpenEngine:
    """An open engine: a writer, a reader, a watch and, once used, direct callers, each with its own connection."""

    def __init__(self, path: Path, clock: Clock) -> None:
        check_file(path)
        self.pid = os.getpid()
        self._is_closing = False
        self.connections: list[apsw.Connection] = []
        self._locks = _lock(path)
        try:
            self._file = self._connect(path, clock)
        except BaseException:
            release_locks(self._locks, self._disconnect)
            raise
        writing, reading, watching = self.connections
        self._path = path
        self.direct: DirectConnection | None = None
        self._is_direct_tried = False
        self.watch = FileWatch(path, watching, clock)
        writer = Writer(path, writing, self.watch.notify, self._file, FILE_VERSION)
        self.writer = ConnectionThread("qo sqlite writer", writer.serve)
        self.reader = ConnectionThread("qo sqlite reader", _reader(path, SqliteReader(reading), self._file))

    def _connect(self, path: Path, clock: Clock) -> OpenFile:
        self.connections += [connect(path), connect(path), connect(path, waits_for_locks=False)]
        writing = self.connections[0]
        real = open_log(writing, path)
        try:
            self._locks.keep_shared_memory(Path(f"{real}-shm"))
            return OpenFile(path, real, self._locks, clock)
        except OSError as error:
            raise StorageError(f"{path} disappeared while it was opened: {error}; try again") from error

    def direct_connection(self) -> DirectConnection | None:
        """The connection for callers that write in their own threads; None if it cannot be opened."""
        if not self._is_direct_tried:
            self.writer.call(self._open_direct)  # in that thread, because the caller can be interrupted
        return self.direct

    def _open_direct(self, _: object) -> None:
        if self._is_direct_tried:
            return
        self._is_direct_tried = True
        steps = WriteSteps()
        try:
            steps = self._locks.borrow_steps(self._file.index)
            self.direct = DirectConnection(self._path, self._file, self.writer.lock, steps, self.watch.notify)
            self.connections.append(self.direct.db)
        except (OSError, apsw.Error, StorageError) as error:
            self._locks.return_steps(steps)
            log.warning("%s: single submits are slower than usual, because a connection failed: %s", self._path, error)

    def close_later(self) -> None:
        """Close in another thread: the garbage collector may call this while the current thread holds a lock."""
        if self.pid == os.getpid() and not self._is_closing:
            with suppress(RuntimeError):  # the interpreter is exiting and starts no threads
                Thread(target=self.close, name="qo sqlite closer", daemon=True).start()

    def close(self) -> None:
        self._is_closing = True
        self.writer.stop()
        self.reader.stop()
        self.writer.join()
        self.reader.join()
        self.watch.close()
        if self.direct is not None:
            self.direct.close()
            self._locks.return_steps(self.direct.file_locks)
        if self._file.problem():  # a log that other processes do not see must not overwrite their writes
            for connection in self.connections[:2]:
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        release_locks(self._locks, self._disconnect)

    def _disconnect(self) -> None:
        for connection in reversed(self.connections):  # the writer last: the last connection to close removes the log
            connection.close()


def _lock(path: Path) -> FileLocks:
    """Create or update the file, then lock it.

    A connection from before the lock is closed, because its log may have been deleted since.
    """
    first = connect(path)
    try:
        prepare(first, path)
        return acquire_locks(path)
    except OSError as error:
        raise StorageError(f"{path} disappeared while it was opened: {error}; try again") from error
    finally:
        first.close()


def _reader(
    path: Path, reading: SqliteReader, file: OpenFile
) -> Callable[[Sequence[ConnectionCall | DirectCall]], None]:
    def serve(calls: Sequence[ConnectionCall | DirectCall]) -> None:
        for call in calls:
            try:
                call.answer = call.work(reading)
                file.check()
            except apsw.Error as error:
                call.error = to_qo_error(path, error)
                call.error.__cause__ = error
            except Exception as error:  # noqa: BLE001 - the caller gets it
                call.error = error

    return serve


class SqliteEngine(TableEngine):
    def __init__(self, path: Path, clock: Clock = system_clock) -> None:
        super().__init__(clock)
        self._path = path
        self._open_engine: _OpenEngine | None = None
        self._opening = Lock()
        self._damage_log = DamageLog()
        self._repeating: set[str] = set()  # leases whose claim is being repeated

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._opening:
            if self._open_engine is None:
                self._open_engine = _OpenEngine(self._path, self._clock)
                # Close the file when the engine is garbage-collected without close().
                weakref.finalize(self, self._open_engine.close_later).atexit = False

    async def close(self) -> None:
        """Finish all calls, then close the file."""
        opened, self._open_engine = self._open_engine, None
        if opened is None or opened.pid != os.getpid():  # a forked child has nothing to close
            return
        with suppress(StorageError):  # waits until tasks of abandoned claims are queued for release
            await opened.writer.submit(_nothing)
        try:
            await asyncio.to_thread(opened.close)
        except RuntimeError:  # the interpreter is exiting and starts no threads, so blocking the loop is harmless
            opened.close()

    def _opened(self) -> _OpenEngine:
        opened = self._open_engine
        if opened is None:
            raise StorageError(f"{self._path} is not open; call open() first")
        if opened.pid != os.getpid():
            raise StorageError(f"{self._path} was opened before a fork; open another engine in this process")
        return opened

    @property
    def connections(self) -> list[apsw.Connection]:
        """The connections of the writer, the reader, the watch and, once used, of direct callers, for tests."""
        return self._opened().connections

    # --- writing

    @property
    def adds_directly(self) -> bool:
        return True

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        opened = self._opened()
        if len(tasks) == 1 and tasks[0].idempotency_key is None and opened.writer.is_idle:
            direct = opened.direct or opened.direct_connection()
            if direct is not None and direct.add(tasks[0], self._clock()):
                return [tuple.__new__(Added, (tasks[0].id, True))]  # a quarter of the time of `Added(...)`
        check_distinct(task.id for task in tasks)
        writer = opened.writer
        while True:
            try:
                added: list[Added] = writer.call(lambda table: table.add(tasks, self._clock()))
            except DamageFound as found:
                self._damage_log.report(writer.call(methodcaller("set_aside", found.rows)))
            else:
                return added

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """Claim tasks. The tasks of a caller that was cancelled in the meantime are released."""
        if request.is_repeat:
            self._repeating.add(request.lease_id)
        try:
            return await self._write(lambda table: table.claim(request, self._clock()), self._hand_back(request))
        finally:
            self._repeating.discard(request.lease_id)

    def _hand_back(self, request: ClaimRequest) -> Callable[[list[Task]], None]:
        """Release the tasks of a cancelled claim: an expired lease would count as a failure."""
        writer = self._opened().writer

        def hand_back(tasks: list[Task]) -> None:
            if tasks and request.lease_id not in self._repeating:
                changes = [release(task, None) for task in tasks]
                done = writer.submit(lambda table: table.apply(changes, self._clock()))
                done.add_done_callback(asyncio.Future.exception)  # if this fails too, the lease expires

        return hand_back

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await around_damage(lambda: self._submit(work, abandoned), self._set_aside)

    async def _submit(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None
    ) -> Answer:
        done: asyncio.Future[Answer] = self._opened().writer.submit(work, abandoned)
        try:
            return await done
        except asyncio.CancelledError:
            if abandoned is not None and done.done() and not done.cancelled() and done.exception() is None:
                # The caller was cancelled after the answer was set. `claim` must leave `_repeating` first.
                done.get_loop().call_soon(abandoned, done.result())
            raise

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._opened().writer.submit(lambda table: table.set_aside(bad)))

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await around_damage(lambda: self._opened().reader.submit(work), self._set_aside)

    # --- waiting

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._opened().watch.wait(request, timeout, self._stage)

    async def _stage(self) -> None:
        await self._write(lambda table: table.stage(self._clock()))


def _nothing(_: Any) -> None: ...


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:
    return SqliteEngine(path_of(url), clock)
