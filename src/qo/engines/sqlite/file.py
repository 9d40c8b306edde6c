"""The database file: its path in a URL, checks before SQLite opens it, and the settings that this engine needs.

`OpenFile` holds the files of an open database: one engine writes at a time, and checks that the files are still at
their paths.
"""

import asyncio
import contextlib
import os
import stat
import sys
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import apsw

from qo.backoff import Backoff
from qo.clock import Clock, boot_clock
from qo.engines.sqlite.file_locks import FileLocks, identity
from qo.errors import InvalidSetting, OutcomeUnknown, StorageError
from qo.formats import Schema
from qo.safe_text import hide_password
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import FILE_VERSION, HEADER, check_header
from qo.sqlite_tables.migrations import check_version, migrate

_LOCK_TIMEOUT = 30.0
_FIRST_DELAY, _MAX_DELAY = 0.0002, 0.005  # between attempts to lock
_CACHE_SIZE = -32_000  # KiB of pages per connection; negative, as the pragma requires
_PRIVATE = 0o600  # mode of a new file; the umask can restrict it further
_RETRY_DELAY = 0.002
# 16 MB of write-ahead log; with SQLite's default of 1000, single submits copy each page every 125 commits
_CHECKPOINT_PAGES = 4000
_JOURNAL_LIMIT = 64 * 1024 * 1024  # bytes of write-ahead log kept after a burst
_URL_HINT = "write sqlite:///queue.db for a file here, or sqlite:////var/lib/queue.db for a file anywhere"
# Seconds since the last change of a folder after which the next one is sure to give it another time of change. The
# coarsest file systems record that time in steps of two seconds. If a time has a fraction of a millisecond, the file
# system records every step of the kernel's clock, which takes 10 ms at most.
_SETTLED_AFTER, _EXACTLY_SETTLED_AFTER = 3.0, 0.1
_NANOSECONDS_PER_MILLISECOND = 1_000_000
# POSIX: creating, deleting or renaming a file sets the time of change of its folder. No program can set that back,
# unlike the time of modification.
_FOLDERS_RECORD_CHANGES = sys.platform != "win32"
# Seconds after which the files are checked even if their folder seems unchanged: some file systems (FUSE, vfat) do not
# record its changes, and a mount over a file does not change it.
_CHECK_INTERVAL = 1.0
_FolderState = tuple[int, int, int]  # device, inode and time of change


def path_of(url: str) -> Path:
    """The path in `sqlite:///relative.db` or `sqlite:////absolute.db`. Raises InvalidSetting."""
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    if parts.query or parts.fragment:
        raise InvalidSetting(f"{hide_password(url)!r}: sqlite:// has no options; remove what follows the file's name")
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


class OpenFile:
    """Detects deleted or replaced files. Writes to a deleted file succeed and are lost when it is closed."""

    def __init__(self, path: Path, real: Path, locks: FileLocks, clock: Clock, elapsed: Clock = boot_clock) -> None:
        """`real`: the file that SQLite opened, links resolved. Its log is next to that file."""
        self._path = path
        self._locks = locks
        self._clock, self._elapsed = clock, elapsed
        # Strings, because os.stat is called at every commit and converting a Path costs as much as the call.
        self._identities = [(name, *identity(name)) for name in (str(path), f"{real}-wal", f"{real}-shm")]
        self.index = f"{real}-shm"  # the shared memory with the index of the log
        self.folder = str(path.parent)
        # A link can lead to another folder than the one that holds the log.
        self._has_one_folder = _FOLDERS_RECORD_CHANGES and not path.is_symlink() and path.parent.samefile(real.parent)
        self._sound_state: _FolderState | None = None  # of the folder, in which all files were at their paths
        self._check_at = 0.0  # by `elapsed`

    def begin_write(self) -> None:
        """Exclude other engines. Raises StorageError, before anything is written, if the file is not at its path."""
        self._locks.begin_write(self)
        try:
            self.check_writable()
        except StorageError:
            self._locks.end_write()
            raise

    def check_writable(self) -> None:
        """Call before a write."""
        problem = self.problem()
        if problem:
            raise StorageError(f"{problem}; nothing of this call was stored")

    def keep_index(self) -> None:
        self._locks.keep_index()

    def end_write(self) -> None:
        self._locks.end_write()

    def check_committed(self) -> None:
        problem = self.problem()
        if problem:
            raise OutcomeUnknown(f"{problem}; this call may be lost")

    def check(self) -> None:
        problem = self.problem()
        if problem:
            raise StorageError(problem)

    def is_unchanged(self) -> bool:
        """Whether the folder is as it was when its files were at their paths, less than a second ago.

        While the folder does not change, its files are where they were: one call instead of three, twice per commit.
        """
        sound = self._sound_state
        if sound is None or self._elapsed() >= self._check_at:
            return False
        try:
            found = os.stat(self.folder)  # noqa: PTH116 - see above
        except OSError:
            return False
        return found.st_ctime_ns == sound[2] and found.st_ino == sound[1] and found.st_dev == sound[0]

    def problem(self) -> str:
        """Why writes to the open files would not be found at the path; empty if they would."""
        if self.is_unchanged():
            return ""
        state = self._folder_state() if self._has_one_folder else None  # before the files: they may change meanwhile
        problem = self._missing()
        self._check_at = self._elapsed() + _CHECK_INTERVAL
        self._sound_state = state if state is not None and not problem and self._is_settled(state) else None
        return problem

    def _folder_state(self) -> _FolderState | None:
        try:
            found = os.stat(self.folder)  # noqa: PTH116 - see above
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def _is_settled(self, state: _FolderState) -> bool:
        """Whether the next change gives the folder another time of change."""
        is_exact = state[2] % _NANOSECONDS_PER_MILLISECOND != 0
        return self._clock() - state[2] / 1e9 > (_EXACTLY_SETTLED_AFTER if is_exact else _SETTLED_AFTER)

    def _missing(self) -> str:
        for name, device, inode in self._identities:
            try:
                found = os.stat(name)  # noqa: PTH116 - see above
            except OSError:
                return self._lost(name)
            if found.st_ino != inode or found.st_dev != device:
                return self._lost(name)
        return ""

    def _lost(self, name: str) -> str:
        return self._lost_file() if name == str(self._path) else self._lost_log(Path(name))

    def _lost_file(self) -> str:
        return (
            f"{self._path} was deleted, moved or replaced while this process had it open; put it back,"
            " or restart this process to use what is at that path now"
        )

    def _lost_log(self, place: Path) -> str:
        return (
            f"{place} was deleted or replaced while this process had it open; stop every process that uses"
            f" {self._path}, run `qo doctor`, and start again; {place.name} is part of the database: never delete it"
        )
