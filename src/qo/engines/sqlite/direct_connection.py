"""A connection on which a caller adds a task in its own thread, without waiting for another one.

CPython runs signal handlers and raises asynchronous exceptions (Ctrl-C, a time limit) between bytecodes. So nothing may
be locked between two bytecodes: the code that was interrupted may never continue, and a signal handler that waits for
another thread would wait for the interrupted code. Therefore one bytecode takes the locks, writes and releases the
locks. `results.extend(starmap(call, steps))` calls functions of C one after the other in C. The write is one statement,
and so is its transaction. The list has the results of the steps that were done, and so shows how far a call came. If a
step raises, the first call of the handler releases all locks in the same way: CPython does not interrupt between an
exception, the beginning of its handler, and the end of the first call in it. It does after that.

No step may run Python code. The connection has no busy handler: a caller that finds a lock taken leaves its task to the
thread of the engine's other connection.
"""

from collections.abc import Callable
from itertools import chain, starmap
from operator import call
from pathlib import Path
from threading import Lock
from typing import Any

import apsw

from qo.engines.sqlite.file import OpenFile, connect
from qo.engines.sqlite.file_locks import WriteSteps
from qo.errors import OutcomeUnknown
from qo.model import DEFAULT_POLICY, NewTask, schedule
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import FILE_VERSION
from qo.sqlite_tables.rows import encode_list, encode_retry
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.unindexed import number_of

_Steps = tuple[tuple[Any, ...], ...]  # functions of C and their arguments
_MAX_UNINDEXED = 512  # tasks; the next one is left to the engine's other connection, which adds all to the indexes
_ADD = SQL["add_directly"].replace("{version}", str(FILE_VERSION))
_MAX_PAYLOAD = 8_000  # bytes; a row is written again when it is added to the indexes
_CHECKPOINT_PAGES = 1000  # a log that grows costs more at every flush than one that is written again
_CACHE_SIZE = -4000  # KiB of pages; adding a task touches few


class DirectConnection:
    def __init__(
        self, path: Path, file: OpenFile, lock: Lock, file_locks: WriteSteps, notify: Callable[[], None]
    ) -> None:
        """`lock`: excludes the other threads that write for this engine."""
        self._path, self._file, self._lock, self._notify = path, file, lock, notify
        self.db = connect(path, waits_for_locks=False, create=False)
        try:
            self.db.execute(f"PRAGMA cache_size = {_CACHE_SIZE}")
            self.db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        except BaseException:
            self.db.close()
            raise
        # A separate cursor: creating one later could start the garbage collector, and finalizers run Python code.
        self._execute = self.db.cursor().execute
        self.file_locks = file_locks
        self._unlock = list(file_locks.unlock)  # empty once closed: another engine may use the descriptors then
        # `changes` raises if the connection is closed.
        self._before: _Steps = ((lock.__enter__,), (self.db.changes,), *file_locks.lock)
        self._after: _Steps = (*file_locks.unlock, (lock.release,))
        self._number = len(self._before) + 1 + len(self._after)  # of steps
        self._added = 0  # since a task was left to the other connection

    def add(self, new: NewTask, now: float) -> bool:
        """Add a task without an idempotency key. False: nothing was stored, and this path cannot store it.

        Raises StorageError or OutcomeUnknown.
        """
        payload, retry, needs = new.payload, new.retry, new.needs
        if len(payload) > _MAX_PAYLOAD or self._added >= _MAX_UNINDEXED:
            self._added = 0
            return False
        available_at, rank = schedule(new, now)
        row = (
            number_of(new.id),
            new.id,
            available_at,
            rank,
            now,
            new.priority,
            new.timeout,
            new.max_retries,
            None if retry is DEFAULT_POLICY else encode_retry(retry),
            new.trace_id,
            new.run_at,
            payload,
            new.queue,
            new.type,
            encode_list(needs) if needs else "[]",
            new.batch,
        )
        file = self._file
        if not file.is_unchanged():
            file.check_writable()
        if not self._write(row):
            return False
        self._added += 1
        if not file.is_unchanged():
            file.check_committed()
        self._notify()
        return True

    def _write(self, row: tuple[object, ...]) -> bool:
        steps: _Steps = (*self._before, (self._execute, _ADD, row), *self._after)
        release = starmap(call, chain(self._unlock, ((self._lock.release,),)))  # reads the list when it is called
        results: list[object] = []
        number = self._number
        try:
            results.extend(starmap(call, steps))
        except BaseException as error:
            if not results or results[number - 1 :]:  # an interrupt before or after the steps
                raise
            try:
                tuple(release)
            finally:  # the steps after one that raised
                try:
                    tuple(release)
                finally:
                    tuple(release)
            if isinstance(error, apsw.IOError):
                # The log may hold the commit although the flush failed, and a crash could bring it back.
                raise to_qo_error(self._path, error, OutcomeUnknown) from error
            if isinstance(error, apsw.Error | OSError):  # SQLite has rolled back
                return False
            raise
        return True

    def close(self) -> None:
        """A caller that comes later finds the connection closed, and unlocks nothing."""
        with self._lock:
            self.db.close()
            self._unlock.clear()
