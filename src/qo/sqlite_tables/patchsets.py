"""Patchsets: the changed rows of a transaction as bytes, recorded on one replica of the tables and applied to others.

They are those of SQLite's session extension. A patchset contains new values only, so it applies to a replica that holds
the same rows as the recording one before its transaction. SQLite ignores changes of a table that is missing, or that
has fewer columns than the patchset. So the caller must compare the versions of the schemas before it applies one.
"""

from collections.abc import Container, Iterable

import apsw

from qo.errors import StorageError
from qo.sqlite_tables.driver_errors import GENERAL

# Every table is either replicated, or local to a database.
RECORDED = (
    "lanes",
    "tasks",
    "events",
    "tally",
    "notes",
    "followers",
    "submissions",
    "segments",
    "cold_ids",
    "cold_counts",
)
LOCAL = ("formats", "lane_removals")

_CONFLICTS = {
    apsw.SQLITE_CHANGESET_DATA: "the row has other values",
    apsw.SQLITE_CHANGESET_NOTFOUND: "the row does not exist",
    apsw.SQLITE_CHANGESET_CONFLICT: "the row exists",
    apsw.SQLITE_CHANGESET_CONSTRAINT: "the row violates a constraint",
    apsw.SQLITE_CHANGESET_FOREIGN_KEY: "the row violates a foreign key",
}

# SQLite reports a damaged patchset as a damaged database.
_STORE_ERRORS = tuple(kind for kind in GENERAL if not issubclass(kind, (apsw.CorruptError, apsw.NotADBError)))


class PatchsetRefused(StorageError):
    """A patchset does not fit the rows of this database, or is damaged."""


class ChangeRecorder:
    """Records the changes of one transaction at a time on one connection."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._session: apsw.Session | None = None

    def start(self) -> None:
        """Record from now on. Changes recorded before, and not taken, are dropped."""
        self.close()
        self._session = session = apsw.Session(self._db, "main")
        for table in RECORDED:
            session.attach(table)

    def take(self) -> bytes:
        """The patchset of what has changed since `start`; empty if nothing has. Call inside the transaction.

        Changes that were rolled back are not in it, because the session compares with the rows as they are now.
        """
        if self._session is None:
            raise RuntimeError("the recorder was not started")
        patchset: bytes = self._session.patchset()
        self.close()
        return patchset

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def apply_patchset(
    db: apsw.Connection, patchset: bytes, tables: Container[str] = RECORDED, *, others: Container[str] = ()
) -> None:
    """Change the rows of this database. Call inside a transaction. Raises PatchsetRefused if it does not fit exactly.

    Changes of the tables in `others` are ignored.

    After an error the caller must roll back: a savepoint for this alone would cost an eighth of the time. Errors of
    the store, such as a full disk, are raised as the driver's errors.
    """
    problem = ""

    def is_recorded(table: str) -> bool:
        nonlocal problem
        if table in others:
            return False
        if table not in tables:
            problem = f"table {table!r} is not replicated"
            raise PatchsetRefused(problem)
        return True

    def refuse(reason: int, change: apsw.TableChange) -> int:
        nonlocal problem
        problem = f"{change.op} in {change.name}: {_CONFLICTS.get(reason, f'conflict {reason}')}"
        return apsw.SQLITE_CHANGESET_ABORT

    try:
        apsw.Changeset.apply(
            patchset, db, filter=is_recorded, conflict=refuse, flags=apsw.SQLITE_CHANGESETAPPLY_NOSAVEPOINT
        )
    except _STORE_ERRORS:
        raise
    except (apsw.Error, PatchsetRefused, ValueError) as error:  # the name of a table may not be UTF-8
        raise PatchsetRefused(f"a patchset cannot be applied: {problem or error}") from error


def merge_patchsets(patchsets: Iterable[bytes]) -> bytes:
    """One patchset with the effect of all of them in this order. Raises PatchsetRefused if one is damaged."""
    builder = apsw.ChangesetBuilder()  # type: ignore[no-untyped-call]
    try:
        for patchset in patchsets:
            builder.add(patchset)
        merged: bytes = builder.output()
    except apsw.Error as error:
        raise PatchsetRefused(f"patchsets cannot be merged: {error}") from error
    finally:
        builder.close()
    return merged
