"""The database file: its path in a URL, checks before SQLite opens it, and the settings that this engine needs."""

import asyncio
import contextlib
import os
import stat
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.errors import InvalidSetting, StorageError
from qo.formats import Schema
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import FILE_VERSION, HEADER, check_header
from qo.sqlite_tables.schema import check_version, migrate
from qo.url_secrets import hide_password

_LOCK_TIMEOUT = 30.0
_FIRST_DELAY, _MAX_DELAY = 0.0002, 0.005  # between attempts to lock
_CACHE_SIZE = -32_000  # KiB of pages per connection; negative, as the pragma requires
_PRIVATE = 0o600  # mode of a new file; the umask can restrict it further
_RETRY_DELAY = 0.002
# 16 MB of write-ahead log; with SQLite's default of 1000, single submits copy each page every 125 commits
_CHECKPOINT_PAGES = 4000
_JOURNAL_LIMIT = 64 * 1024 * 1024  # bytes of write-ahead log kept after a burst

_URL_HINT = "write sqlite:///queue.db for a file here, or sqlite:////var/lib/queue.db for a file anywhere"


def path_of(url: str) -> Path:
    """The path in `sqlite:///relative.db` or `sqlite:////absolute.db`. Raises InvalidSetting."""
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    if parts.query or parts.fragment:
        raise InvalidSetting(
            f"{hide_password(url)!r}: sqlite:// has no options; leave out what follows the file's name"
        )
    if parts.netloc or not name or name.endswith("/"):
        raise InvalidSetting(f"{hide_password(url)!r} does not name a file; {_URL_HINT}")
    if name == ":memory:":
        raise InvalidSetting(f"{hide_password(url)!r}: for tasks in memory write memory://")
    return Path(name).absolute()  # resolved now, because the process may change its directory later


def check_file(path: Path) -> bool:
    """Whether the file holds a queue. Raises StorageError, without touching the file, if it is not qo's."""
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
    if header is not None and header.version > FILE_VERSION:
        _check_newer(path)
    return header is not None


def is_missing(url: str) -> bool:
    return not check_file(path_of(url))


def _check_newer(path: Path) -> None:
    """Raise NewerFormat unless the tables of a newer schema allow this qo."""
    with contextlib.closing(connect(path, create=False)) as db:
        try:
            check_version(db, path)
        except apsw.Error as error:
            raise to_qo_error(path, error) from error


def _head(path: Path) -> bytes:
    """The file's header, read through SQLite, because closing a descriptor would drop SQLite's locks on the file.

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
    """Create an empty private file if there is none. SQLite copies its mode to the log and the shared memory.

    mknod(2) opens no descriptor. Closing one would drop the locks that another thread has taken on the new file.
    """
    with contextlib.suppress(FileExistsError):
        try:
            os.mknod(path.resolve(), _PRIVATE | stat.S_IFREG)
        except (AttributeError, PermissionError):  # not available on Windows; only for root on macOS
            path.touch(_PRIVATE, exist_ok=False)


def connect(path: Path, *, waits_for_locks: bool = True, create: bool = True) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    try:
        if create:
            _create_private(path)
        db = apsw.Connection(str(path), flags=flags, statementcachesize=200)
        if waits_for_locks:
            db.set_busy_handler(_BusyHandler())
        db.execute("PRAGMA synchronous = FULL")  # NORMAL loses acknowledged commits on a power failure
        db.execute(f"PRAGMA cache_size = {_CACHE_SIZE}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be created: {error.strerror}; check its directory") from error
    return db


def prepare(db: apsw.Connection, path: Path) -> None:
    """Create or update the tables, then turn the write-ahead log on.

    In this order, so that a new file carries the application id from its first byte on. With the log it would stay
    blank until the first checkpoint.
    """
    try:
        migrate(db, path, FILE_VERSION)
        _turn_log_on(db)
    except apsw.Error as error:
        raise to_qo_error(path, error) from error


def open_log(db: apsw.Connection, path: Path) -> Path:
    """Make a connection open the write-ahead log and its shared memory. Returns the file's path, links resolved."""
    try:
        db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
    return Path(db.filename)


def _turn_log_on(db: apsw.Connection) -> None:
    """Needs exclusive access for a moment. SQLite does not call the busy handler for it, so it is retried here."""
    since = boot_clock()
    while True:
        try:
            if db.execute("PRAGMA journal_mode = wal").get == "wal":
                return
        except (apsw.BusyError, apsw.LockedError):
            if boot_clock() - since > _LOCK_TIMEOUT:
                raise
        time.sleep(_RETRY_DELAY)


class _BusyHandler:
    """Waits for a lock in short random sleeps. SQLite's own sleeps reach 100 ms, and a commit takes about 1 ms."""

    def __init__(self) -> None:
        self._since = 0.0
        self._backoff = Backoff(_FIRST_DELAY, _MAX_DELAY, jitter=(0.5, 1.5))

    def __call__(self, tries: int) -> bool:
        if tries == 0:
            self._since = boot_clock()
            self._backoff.reset()
        time.sleep(self._backoff.next())
        return boot_clock() - self._since < _LOCK_TIMEOUT


async def schema_of(url: str) -> Schema:
    """The version of the schema, read without changing the file."""
    return await asyncio.to_thread(_read_schema, path_of(url))


def _read_schema(path: Path) -> Schema:
    if not check_file(path):
        return Schema(0, FILE_VERSION)
    try:
        with contextlib.closing(connect(path, create=False)) as db:
            return Schema(check_version(db, path), FILE_VERSION)
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
