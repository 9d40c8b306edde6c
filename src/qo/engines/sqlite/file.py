"""The database file: looked at before SQLite may touch it, then opened the way this engine needs it."""

import time
from pathlib import Path
from struct import unpack_from
from typing import NamedTuple

import apsw

from qo.clock import boot_clock
from qo.engines.sqlite.trouble import storage_error
from qo.errors import StorageError
from qo.ids import luck

APPLICATION_ID = int.from_bytes(b"qo-q", "big")
VERSION = 2  # of the schema; the number of the last file in schema/

_MAGIC = b"SQLite format 3\x00"
_HEADER = 100  # bytes
_LOG = 2  # in byte 18: there is a write-ahead log
_PATIENCE = 30.0  # seconds to wait for other processes
_SHORTEST, _LONGEST = 0.0002, 0.005  # seconds between two looks at a lock
_CACHE = -32_000  # KiB of pages kept by a connection


class Header(NamedTuple):
    version: int
    ours: bool


def read_header(path: Path) -> Header | None:
    """What the file says it is, read without SQLite, which would leave traces. None: there is no database yet."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER)
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise StorageError(f"{path}: the directory {path.parent} is missing; create it") from error
        return None
    except IsADirectoryError as error:
        raise StorageError(f"{path} is a directory; name a file in it") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; check its permissions") from error
    if not head:
        return None
    if len(head) < _HEADER or not head.startswith(_MAGIC):
        raise StorageError(f"{path} is not a SQLite database; name another file")
    (cookie,), (version,), (application,) = (unpack_from(">I", head, offset) for offset in (40, 60, 68))
    with_log = head[18] == _LOG  # then what the database holds may not be in this file yet
    blank = not (cookie or version or application or with_log)
    return None if blank else Header(version, application == APPLICATION_ID)


def check_file(path: Path) -> bool:
    """Refuse, untouched, what is not ours. False: there is no queue in it yet."""
    header = read_header(path)
    if header is None:
        return False
    if not header.ours:
        raise StorageError(f"{path} is a SQLite database of another application; name another file")
    check_version(path, header.version)
    return True


def check_version(path: Path, version: int) -> None:
    if version > VERSION:
        raise StorageError(f"{path} was written by a newer qo (schema {version}, this one knows {VERSION}); upgrade qo")


def connect(path: Path, *, patient: bool = True, create: bool = True) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        db = apsw.Connection(str(path), flags=flags, statementcachesize=200)
        if patient:
            db.set_busy_handler(_Patience())
        db.execute("PRAGMA synchronous = FULL")  # NORMAL loses acknowledged commits when the power goes
        db.execute(f"PRAGMA cache_size = {_CACHE}")
    except apsw.Error as error:
        raise storage_error(path, error) from error
    return db


class _Patience:
    """Waits for a lock in short uneven sleeps: SQLite's own reach 100 ms, and a commit takes one."""

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = boot_clock()
        time.sleep(min(_LONGEST, _SHORTEST * 2 ** min(tries, 8)) * (0.5 + luck()))
        return boot_clock() - self._since < _PATIENCE
