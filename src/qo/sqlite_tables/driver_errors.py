"""Maps the driver's errors to messages that state what to do."""

import apsw

from qo.errors import StorageError

_ADVICE: tuple[tuple[type[apsw.Error], str], ...] = (
    (apsw.FullError, "the disk is full and nothing of this call was stored; free some space and try again"),
    (apsw.BusyError, "other processes held the write lock for 30 s; look for one that hangs, then try again"),
    (apsw.LockedError, "the database is locked; look for a process that hangs, then try again"),
    (apsw.ReadOnlyError, "the file cannot be written; check its permissions, and those of its directory"),
    (apsw.CantOpenError, "the file cannot be opened; check its permissions, and those of its directory"),
    (apsw.PermissionsError, "the file cannot be opened; check its permissions, and those of its directory"),
    (apsw.AuthError, "the file cannot be opened; check its permissions, and those of its directory"),
    (apsw.CorruptError, "the database is damaged; run `qo doctor`, and restore a copy"),
    (apsw.NotADBError, "the database is damaged; run `qo doctor`, and restore a copy"),
    (apsw.IOError, "the disk reported an error; check it, then try again"),
    (apsw.NoMemError, "there was not enough memory; free some and try again"),
)
# Errors of the store rather than of one call: all calls of the transaction fail.
GENERAL = tuple(kind for kind, _ in _ADVICE)


def to_qo_error(place: object, error: apsw.Error, kind: type[StorageError] = StorageError) -> StorageError:
    advice = next((text for known, text in _ADVICE if isinstance(error, known)), "SQLite refused the call")
    return kind(f"{place}: {advice} ({error})")
