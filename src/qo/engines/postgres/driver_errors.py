"""The driver's errors as sentences a user can act on."""

import psycopg
from psycopg import errors

from qo.engines.postgres.address import PostgresAddress
from qo.errors import NewerFormat, Refused, StorageError

# A task refers to a lane that does not exist: by its count, or by the group in its row of `ready`.
LANE_GONE = (errors.ForeignKeyViolation, errors.NotNullViolation)

_ADVICE: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        "the server refused the user; check the name, the password and pg_hba.conf",
    ),
    (errors.InvalidCatalogName, "there is no such database; create it (createdb) or name another"),
    (errors.InsufficientPrivilege, "this user may not do that; grant it the rights, or create the schema for it"),
    (errors.ReadOnlySqlTransaction, "this server is a read-only standby; connect to the primary"),
    (errors.DiskFull, "the server's disk is full and nothing of this call was kept; free some space and try again"),
    (errors.TooManyConnections, "the server has no connection left; raise max_connections or run fewer processes"),
    (
        (errors.UndefinedTable, errors.InvalidSchemaName),
        "the queue's tables are gone; open the queue again to create them",
    ),
    (errors.QueryCanceled, "the server gave up; look for locks held too long, or a short statement_timeout"),
    (errors.LockNotAvailable, "a lock was held too long; look for a transaction that hangs, then try again"),
    (LANE_GONE, "the lane of a task was added or removed after this transaction began; repeat the transaction"),
    ((errors.DeadlockDetected, errors.SerializationFailure), "others were in the way again and again; try again"),
    (
        (psycopg.OperationalError, psycopg.InterfaceError),
        "the server cannot be reached or cut the connection; check that it runs, then try again",
    ),
)

_FINAL = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    errors.ReadOnlySqlTransaction,
)
_NEWER = "QO001"  # raised by `require_format`: a newer qo has migrated the tables
_FINAL_WORDS = ("authentication failed", "does not exist", "no pg_hba.conf entry", "permission denied")

AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)  # nothing was written, and a second try may do


def is_final(error: psycopg.Error) -> bool:
    """The server will not have it, however often it is asked. While connecting, the driver tells only its words."""
    if isinstance(error, _FINAL):
        return True
    text = str(error)
    return error.sqlstate is None and "FATAL" in text and any(words in text for words in _FINAL_WORDS)


def to_qo_error(
    address: PostgresAddress, error: psycopg.Error, kind: type[StorageError] = StorageError, *, doing: str = ""
) -> StorageError:
    if error.sqlstate == _NEWER:
        return NewerFormat(f"{address.shown}: {error.diag.message_primary}")
    advice = next((text for known, text in _ADVICE if isinstance(error, known)), "Postgres refused the call")
    if kind is StorageError and is_final(error):
        kind = Refused
    said = " ".join(str(error).split()) or type(error).__name__
    return kind(f"{address.shown}{doing}: {advice} ({said})")
