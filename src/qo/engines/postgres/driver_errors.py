"""Turns the driver's errors into QoErrors that state what to do."""

import re

import psycopg
from psycopg import errors

from qo.engines.postgres.address import PostgresAddress
from qo.errors import NewerFormat, Refused, StorageError

# A task refers to a lane that does not exist: by its count, or by the group in its row of `ready`.
LANE_GONE = (errors.ForeignKeyViolation, errors.NotNullViolation)

_REJECTED = "the server rejected the user; check the name, the password and pg_hba.conf"
_NO_DATABASE = "there is no such database; create it (createdb) or name another"
_INVALID_OPTION = "an option of the URL is not valid; correct it"

_ADVICE: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (
        (errors.InvalidPassword, errors.InvalidAuthorizationSpecification),
        _REJECTED,
    ),
    (errors.InvalidCatalogName, _NO_DATABASE),
    (errors.InsufficientPrivilege, "this user lacks a privilege; grant it, or create the schema for the user"),
    (errors.ReadOnlySqlTransaction, "this server is a read-only standby; connect to the primary"),
    (errors.DiskFull, "the server's disk is full and nothing of this call was stored; free some space and try again"),
    (errors.TooManyConnections, "the server has no free connection; raise max_connections or run fewer processes"),
    (
        (errors.UndefinedTable, errors.InvalidSchemaName),
        "the queue's tables do not exist; open the queue again to create them",
    ),
    (
        errors.QueryCanceled,
        "the server cancelled the statement; look for locks held too long, or a short statement_timeout",
    ),
    (errors.LockNotAvailable, "a lock was held too long; look for a transaction that hangs, then try again"),
    (LANE_GONE, "the lane of a task was added or removed after this transaction began; repeat the transaction"),
    (
        (errors.DeadlockDetected, errors.SerializationFailure),
        "it conflicted with other transactions several times; try again",
    ),
    (
        (psycopg.OperationalError, psycopg.InterfaceError),
        "the server cannot be reached or closed the connection; check that it is running, then try again",
    ),
)

_FINAL = (
    errors.InvalidPassword,
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    errors.ReadOnlySqlTransaction,
)
_NEWER_FORMAT = "QO001"  # SQLSTATE of `require_format`: a newer qo has migrated the tables
# The errors of a connection attempt have no SQLSTATE, only a text of libpq or of the server.
_ATTEMPT_ADVICE = (
    (re.compile(r"FATAL:.*database \".*\" does not exist", re.DOTALL), _NO_DATABASE),
    (
        re.compile(r"FATAL:.*(authentication failed|role \".*\" does not exist|no pg_hba.conf entry)", re.DOTALL),
        _REJECTED,
    ),
    (re.compile(r"FATAL:.*permission denied", re.DOTALL), "this user may not connect to the database; grant CONNECT"),
    (re.compile(r"no password supplied"), "the server asks for a password; add it to the URL or to ~/.pgpass"),
    (re.compile(r"connection is bad: invalid (?!response)"), _INVALID_OPTION),
)

TRANSIENT = (errors.DeadlockDetected, errors.SerializationFailure)  # rolled back; a retry may succeed


def is_final(error: psycopg.Error) -> bool:
    """Whether a retry gets the same error."""
    return isinstance(error, _FINAL) or _advice_for_attempt(error) is not None


def _advice_for_attempt(error: psycopg.Error) -> str | None:
    """The advice for a connection attempt that fails again if it is repeated."""
    if error.sqlstate is not None:
        return None
    return next((advice for pattern, advice in _ATTEMPT_ADVICE if pattern.search(str(error))), None)


def to_qo_error(
    address: PostgresAddress, error: psycopg.Error, kind: type[StorageError] = StorageError, *, doing: str = ""
) -> StorageError:
    if error.sqlstate == _NEWER_FORMAT:
        return NewerFormat(f"{address.shown_url}: {error.diag.message_primary}")
    by_kind = next((text for kinds, text in _ADVICE if isinstance(error, kinds)), "Postgres refused the call")
    advice = _advice_for_attempt(error) or by_kind
    if kind is StorageError and is_final(error):
        kind = Refused
    text = " ".join(str(error).split()) or type(error).__name__
    return kind(f"{address.shown_url}{doing}: {advice} ({text})")
