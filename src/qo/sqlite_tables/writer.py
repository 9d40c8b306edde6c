"""The writer: puts all waiting calls into one transaction, and answers them once it is committed."""

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

import apsw

from qo.errors import OutcomeUnknown, QoError, StorageError
from qo.sqlite_tables.driver_errors import GENERAL, to_qo_error
from qo.sqlite_tables.header import VERSION
from qo.sqlite_tables.migrations import check_version
from qo.sqlite_tables.patchsets import RECORDED, apply_patchset
from qo.sqlite_tables.statements import SQL
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.transaction import TableTransaction


class WriterCall(Protocol):
    """One call: the work to do with the table, and its answer or error."""

    @property
    def work(self) -> Callable[[Any], Any]: ...

    answer: Any
    error: BaseException | None


class CommitGuard(Protocol):
    """Checks whether a commit is durable, for a database file that other processes use."""

    def begin_write(self) -> None:
        """Call before a transaction. Raises StorageError if its writes would be lost."""

    def keep_index(self) -> None:
        """Call when the transaction has begun. Raises StorageError if another connection repairs the log."""

    def end_write(self) -> None:
        """Call after a transaction for which `begin_write` succeeded."""

    def check_committed(self) -> None:
        """Raises OutcomeUnknown if the last commit may be lost."""


class _Unguarded:
    """The guard of a database in memory."""

    def begin_write(self) -> None: ...

    def keep_index(self) -> None: ...

    def end_write(self) -> None: ...

    def check_committed(self) -> None: ...


_UNGUARDED = _Unguarded()


class _WrittenBefore(Exception):
    """A call raised QoError after it had written something."""


class Writer:
    """Serves the calls of one connection. A bad call fails alone; a store error fails all calls and stores nothing."""

    def __init__(
        self,
        place: object,
        db: apsw.Connection,
        notify: Callable[[], None],
        guard: CommitGuard = _UNGUARDED,
        known_version: int = VERSION,
    ) -> None:
        """`known_version`: the last version of the schema that the caller knows."""
        self._place = place
        self._guard = guard
        self._db = db
        self._notify = notify  # called when there may be something to claim
        self._transaction = TableTransaction(db, known_version)
        self._table = SqliteTable(self._transaction)

    def serve(self, calls: Sequence[WriterCall]) -> None:
        """Run the calls in one transaction and commit it. Each call gets an answer or an error."""
        if calls:
            self._attempt(calls, self._commit)

    def prepare(self, calls: Sequence[WriterCall]) -> bool:
        """Run the calls in one transaction and leave it open: `commit` or `roll_back` must follow.

        Each call gets an answer or an error. False: the store refused all calls, and no transaction is open. This is
        for a database without a guard.
        """
        return self._attempt(calls, lambda: None)

    def commit(self) -> None:
        """Commit the transaction that `prepare` left open. Raises StorageError after it was rolled back."""
        try:
            self._commit()
        except BaseException as error:
            self.forget()
            if isinstance(error, GENERAL):
                raise to_qo_error(self._place, error) from error
            raise
        if self._transaction.has_claimable:
            self._notify()

    def roll_back(self) -> None:
        """Discard the transaction that `prepare` left open."""
        self._transaction.abandon()
        self._db.execute("ROLLBACK")

    def forget(self) -> None:
        """Discard the open transaction, if there is one, and everything that was cached before."""
        self._transaction.forget()
        if self._db.in_transaction:  # SQLite rolls back by itself when the disk is full
            self._db.execute("ROLLBACK")

    @property
    def has_removed_lanes(self) -> bool:
        """Whether the last transaction has removed lanes, which caches cannot see in a patchset."""
        return self._transaction.has_removed_lanes

    @property
    def unreadable(self) -> frozenset[str]:
        """The objects of segments that claims pass over, because they cannot be read."""
        return self._transaction.segments.unreadable

    @unreadable.setter
    def unreadable(self, objects: frozenset[str]) -> None:
        self._transaction.segments.unreadable = objects

    def apply(self, patchset: bytes, *, removes_lanes: bool, tables: Container[str] = RECORDED) -> None:
        """Commit what another writer has recorded. Raises StorageError, or PatchsetRefused, and changes nothing."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            apply_patchset(self._db, patchset, tables)
            if removes_lanes:
                self._db.execute(SQL["count_lane_removal"])
            self._db.execute("COMMIT")
        except BaseException as error:
            self.forget()
            if isinstance(error, GENERAL):
                raise to_qo_error(self._place, error) from error
            raise

    def _attempt(self, calls: Sequence[WriterCall], end: Callable[[], None]) -> bool:
        """Run the calls in one transaction, then `end`. False: it failed, and every call has the error."""
        try:
            self._try(calls, end)
        except StorageError as error:
            for call in calls:  # one error per call: a shared error would collect tracebacks of all callers
                call.error = type(error)(*error.args)
                call.error.__cause__ = error.__cause__
            return False
        except Exception as error:  # noqa: BLE001 - the callers get it: a dead thread would leave them waiting
            for call in calls:
                call.error = error
            return False
        return True

    def _try(self, calls: Sequence[WriterCall], end: Callable[[], None]) -> None:
        try:
            self._transact(calls, self._do, end)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - one call is bad, and fails alone below
            self._transact(calls, self._do_apart, end)
        if self._transaction.has_claimable and not self._db.in_transaction:
            self._notify()

    def _transact(self, calls: Sequence[WriterCall], do: Callable[[WriterCall], None], end: Callable[[], None]) -> None:
        self._guard.begin_write()
        try:
            self._do_all(calls, do, end)
        finally:
            self._guard.end_write()

    def _do_all(self, calls: Sequence[WriterCall], do: Callable[[WriterCall], None], end: Callable[[], None]) -> None:
        try:
            if self._db.in_transaction:  # an asynchronous exception interrupted a rollback
                self.forget()
            self._db.execute("BEGIN IMMEDIATE")
            self._guard.keep_index()
            if self._transaction.is_outdated:  # a newer qo may have changed the tables
                check_version(self._db, self._place, self._transaction.known_version)
            self._transaction.begin()
            for call in calls:
                do(call)
            self._transaction.finish()
            end()
        except BaseException as error:
            self.forget()
            if isinstance(error, GENERAL):
                raise to_qo_error(self._place, error) from error
            raise

    def _commit(self) -> None:
        try:
            self._db.execute("COMMIT")
        except apsw.IOError as error:
            # The log may hold the commit although the flush failed, and a crash could bring it back.
            raise to_qo_error(self._place, error, OutcomeUnknown) from error
        self._transaction.keep()
        self._guard.check_committed()

    def _do(self, call: WriterCall) -> None:
        """Raises the error that rolls back the transaction, also for a call that refused after it had written."""
        call.error = None
        before = self._db.total_changes()
        try:
            call.answer = call.work(self._table)
        except QoError as error:
            if self._db.total_changes() != before:
                raise _WrittenBefore from error
            call.error = error

    def _do_apart(self, call: WriterCall) -> None:
        """Run a call under a savepoint. Used only after a failure, because savepoints are slow."""
        count_changes = self._transaction.count_changes.copy()
        self._db.execute("SAVEPOINT call")
        try:
            self._do(call)
        except GENERAL:
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._db.execute("ROLLBACK TO call")
            self._transaction.undo(count_changes)
            cause = error.__cause__ if isinstance(error, _WrittenBefore) else error
            call.error = to_qo_error(self._place, cause) if isinstance(cause, apsw.Error) else cause
        self._db.execute("RELEASE call")
