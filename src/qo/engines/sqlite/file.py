"""The database file: looked at before SQLite may touch it, then opened the way this engine needs it."""

import contextlib
import os
import stat
import time
from pathlib import Path

import apsw

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.engines.sqlite.address import path_of
from qo.errors import StorageError
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import HEADER, VERSION, check_header
from qo.sqlite_tables.schema import check_version, migrate

_PATIENCE = 30.0  # seconds to wait for other processes
_SHORTEST, _LONGEST = 0.0002, 0.005  # seconds between two looks at a lock
_CACHE = -32_000  # KiB of pages kept by a connection
_PRIVATE = 0o600  # mode of a new file; a stricter umask makes it stricter
_PAUSE = 0.002  # seconds
_CHECKPOINT_PAGES = 4000  # 16 MB of write-ahead log; at SQLite's 1000, single submits copy each page 125 commits later
_JOURNAL_LIMIT = 64 * 1024 * 1024  # bytes of write-ahead log kept after a burst


def check_file(path: Path) -> bool:
    """Refuse, untouched, what is not ours. False: there is no queue in it yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise StorageError(f"{path}: the directory {path.parent} is missing; create it") from error
        return False
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; check its permissions") from error
    if stat.S_ISDIR(mode):
        raise StorageError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise StorageError(f"{path} is not a regular file; name another file")
    header = check_header(path, _head(path))
    if header is not None and header.version > VERSION:
        _check_newer(path)
    return header is not None


def is_missing(url: str) -> bool:
    return not check_file(path_of(url))


def _check_newer(path: Path) -> None:
    """Only its tables say whether this qo may use it."""
    with contextlib.closing(connect(path, create=False)) as db:
        try:
            check_version(db, path)
        except apsw.Error as error:
            raise to_qo_error(path, error) from error


def _head(path: Path) -> bytes:
    """Read through SQLite, which closes no descriptor while it has locks on the file: closing one drops them all.

    SQLite's file system layer does not follow links, so they are resolved here.
    """
    try:
        file = apsw.VFSFile("", str(path.resolve()), [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
        try:
            return file.xRead(HEADER, 0)
        finally:
            file.xClose()
    except apsw.Error as error:
        raise StorageError(f"{path} cannot be read: {error}; check its permissions") from error


def _create_private(path: Path) -> None:
    """Make an empty file for its owner alone, if there is none. SQLite gives the log and the shared memory its mode.

    mknod(2) opens no descriptor. Closing one would drop the locks that another thread has taken on the new file.
    """
    with contextlib.suppress(FileExistsError):
        try:
            os.mknod(path.resolve(), _PRIVATE | stat.S_IFREG)
        except (AttributeError, PermissionError):  # not on Windows; on macOS it is root's
            path.touch(_PRIVATE, exist_ok=False)


def connect(path: Path, *, patient: bool = True, create: bool = True) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        if create:
            _create_private(path)
        db = apsw.Connection(str(path), flags=flags, statementcachesize=200)
        if patient:
            db.set_busy_handler(_Patience())
        db.execute("PRAGMA synchronous = FULL")  # NORMAL loses acknowledged commits when the power goes
        db.execute(f"PRAGMA cache_size = {_CACHE}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be created: {error.strerror}; check its directory") from error
    return db


def prepare(db: apsw.Connection, path: Path) -> None:
    """Create or update the tables, then turn the write-ahead log on.

    In this order: a new file names its owner from its first byte on, and with the log it would stay blank until the
    first checkpoint.
    """
    try:
        migrate(db, path)
        _turn_log_on(db)
    except apsw.Error as error:
        raise to_qo_error(path, error) from error


def open_log(db: apsw.Connection, path: Path) -> Path:
    """Let a connection open the write-ahead log and its shared memory; the file they lie beside, links resolved."""
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
    return Path(db.filename)


def _turn_log_on(db: apsw.Connection) -> None:
    """It needs the file alone for a moment, and does not ask the busy handler when it cannot have it."""
    since = boot_clock()
    while True:
        try:
            if db.execute("PRAGMA journal_mode = wal").get == "wal":
                return
        except (apsw.BusyError, apsw.LockedError):
            if boot_clock() - since > _PATIENCE:
                raise
        time.sleep(_PAUSE)


class _Patience:
    """Waits for a lock in short uneven sleeps: SQLite's own reach 100 ms, and a commit takes one."""

    def __init__(self) -> None:
        self._since = 0.0
        self._backoff = Backoff(_SHORTEST, _LONGEST, jitter=(0.5, 1.5))

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = boot_clock()
            self._backoff.reset()
        time.sleep(self._backoff.next())
        return boot_clock() - self._since < _PATIENCE
