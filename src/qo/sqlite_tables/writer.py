"""The writer: everything that waits goes into one transaction, and is answered once that is committed."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import apsw

from qo.clock import Clock
from qo.errors import OutcomeUnknown, QoError, StorageError
from qo.sqlite_tables.driver_errors import GENERAL, to_qo_error
from qo.sqlite_tables.schema import check_version
from qo.sqlite_tables.table import SqliteTable


class WriterCall(Protocol):
    """One call: what to do with the table, and what came of it."""

    @property
    def work(self) -> Callable[[Any], Any]: ...

    answer: Any
    error: BaseException | None


class CommitGuard(Protocol):
    """What must hold for a commit to be kept, where the database is a file that others use, too."""

    def begin_write(self) -> None:
        """Before a transaction. Raises StorageError if what it writes would not be kept."""

    def end_write(self) -> None:
        """After a transaction that `begin_write` let pass."""

    def check_committed(self) -> None:
        """Raises OutcomeUnknown if what was just committed may be lost."""


class _Unguarded:
    """For a database in memory."""

    def begin_write(self) -> None: ...

    def end_write(self) -> None: ...

    def check_committed(self) -> None: ...


_UNGUARDED = _Unguarded()


class _WrittenBefore(Exception):
    """A call refused after it had written something."""


class Writer:
    """Serves the desk of one connection. A bad call fails alone; a bad disk fails all that wait, and keeps nothing."""

    def __init__(
        self,
        place: object,
        db: apsw.Connection,
        clock: Clock,
        news: Callable[[], None],
        guard: CommitGuard = _UNGUARDED,
    ) -> None:
        self._place = place
        self._guard = guard
        self._db = db
        self._news = news  # told that there may be something to claim
        self._table = SqliteTable(db, clock)

    def serve(self, jobs: Sequence[WriterCall]) -> None:
        if not jobs:
            return
        try:
            self._try(jobs)
        except StorageError as error:
            for job in jobs:  # an error each: one shared by many callers would collect their tracebacks
                job.error = type(error)(*error.args)
                job.error.__cause__ = error.__cause__
        except Exception as error:  # noqa: BLE001 - goes to the callers: a thread that died would leave them waiting
            for job in jobs:
                job.error = error

    def _try(self, jobs: Sequence[WriterCall]) -> None:
        try:
            self._transact(jobs, self._do)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - one of the calls is bad; it will be told when it fails alone
            self._transact(jobs, self._do_apart)
        if self._table.claimable:
            self._news()

    def _transact(self, jobs: Sequence[WriterCall], do: Callable[[WriterCall], None]) -> None:
        self._guard.begin_write()
        try:
            self._do_all(jobs, do)
        finally:
            self._guard.end_write()

    def _do_all(self, jobs: Sequence[WriterCall], do: Callable[[WriterCall], None]) -> None:
        try:
            if self._db.in_transaction:  # an exception from outside interrupted the thread that rolled back
                self._roll_back()
            self._db.execute("BEGIN IMMEDIATE")
            check_version(self._db, self._place)  # a newer qo may have changed the tables since they were opened
            self._table.begin()
            for job in jobs:
                do(job)
            self._table.finish()
            self._commit()
        except BaseException as error:
            self._roll_back()
            if isinstance(error, GENERAL):
                raise to_qo_error(self._place, error) from error
            raise

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except apsw.IOError as error:
            # The log may hold the commit although flushing it failed, and a crash now might bring it back.
            raise to_qo_error(self._place, error, OutcomeUnknown) from error
        self._guard.check_committed()

    def _roll_back(self) -> None:
        self._table.forget()
        if self._db.in_transaction:  # a full disk makes SQLite roll back by itself
            self._db.execute("ROLLBACK")

    def _do(self, job: WriterCall) -> None:
        """Raises what undoes the transaction: of a call that refused, too, if it had written something before."""
        job.error = None
        before = self._db.total_changes()
        try:
            job.answer = job.work(self._table)
        except QoError as error:
            if self._db.total_changes() != before:
                raise _WrittenBefore from error
            job.error = error

    def _do_apart(self, job: WriterCall) -> None:
        """Under a savepoint. They cost too much to have when nothing is wrong."""
        tally = self._table.tally.copy()
        self._db.execute("SAVEPOINT call")
        try:
            self._do(job)
        except GENERAL:
            raise
        except Exception as error:  # noqa: BLE001 - goes to the caller
            self._db.execute("ROLLBACK TO call")
            self._table.undo(tally)
            cause = error.__cause__ if isinstance(error, _WrittenBefore) else error
            job.error = to_qo_error(self._place, cause) if isinstance(cause, apsw.Error) else cause
        self._db.execute("RELEASE call")
