"""The private directory of a replica, and copies of its database. It is disposable: the state is in the bucket.

A process that is killed leaves its directory behind, and the next process that needs one removes it. The lock on
`owner.lock` shows whether the owner is alive. The database of another process is never opened.
"""

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from qo.clock import system_clock
from qo.engines.replicated_log.record_store import LogPosition
from qo.errors import StorageError
from qo.ids import new_token
from qo.sqlite_tables.driver_errors import to_qo_error

if sys.platform != "win32":
    import fcntl

_PREFIX = "qo-replica-"
_NEW_PREFIX = "qo-new-replica-"  # until the directory is locked
_LOCK = "owner.lock"
_DATABASE = "replica.sqlite"
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600  # modes
_MAX_CREATION_TIME = 3600.0  # seconds
_COPIED_PAGES = 1024  # by one step of a copy
_SPACE_FACTOR = 2  # a replica needs its size, and as much again for the write-ahead log or a copy


class ReplicaFile:
    """A directory for one database. It is removed by `remove`, or at the end of the process."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.path = folder / _DATABASE
        self._remove = weakref.finalize(self, _remove_own, folder, lock, os.getpid())

    @classmethod
    def create(cls, raw_bytes: int = 0) -> "ReplicaFile":
        """Create a directory that has room for a database of this size. Raises StorageError."""
        parent = Path(tempfile.gettempdir())
        try:
            remove_abandoned(parent)
            _check_space(parent, raw_bytes)
            return cls(*_create(parent))
        except OSError as error:
            raise StorageError(
                f"{parent}: no directory for a replica can be created: {error.strerror}; set TMPDIR to a directory"
                " that this process can write"
            ) from error

    def remove(self) -> None:
        """Remove the directory. Its database must be closed."""
        self._remove()


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of processes that have died."""
    if sys.platform == "win32":
        return  # it has no such locks
    for folder in parent.glob(f"{_NEW_PREFIX}*"):  # its owner died before it was locked
        with suppress(OSError):
            if system_clock() - folder.stat().st_mtime > _MAX_CREATION_TIME:
                shutil.rmtree(folder, ignore_errors=True)
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # of another user, or being removed
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its owner is alive
            pass
        finally:
            os.close(lock)


def _check_space(parent: Path, raw_bytes: int) -> None:
    needed, free = _SPACE_FACTOR * raw_bytes, shutil.disk_usage(parent).free
    if free < needed:
        raise StorageError(
            f"{parent}: a replica needs {needed / 1e6:.0f} MB of temporary space, and {free / 1e6:.0f} MB are free;"
            " free some, or set TMPDIR to a directory on a larger disk"
        )


def _create(parent: Path) -> tuple[Path, int]:
    """The directory gets its name when it is locked, so that it never seems to be abandoned."""
    name = new_token()
    folder = parent / f"{_NEW_PREFIX}{name}"
    folder.mkdir(_PRIVATE_FOLDER)
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    if sys.platform != "win32":
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return folder.rename(parent / f"{_PREFIX}{name}"), lock


def _remove_own(folder: Path, lock: int, process: int) -> None:
    if os.getpid() == process:  # a forked child must not remove the directory of its parent
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


# --- copies


class PinnedReplica:
    """The tables of a replica at one position."""

    def __init__(self, place: str, path: Path, position: LogPosition, schema: int, schema_since: int) -> None:
        self._place, self.position, self.schema, self.schema_since = place, position, schema, schema_since
        self._db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            self._db.execute("BEGIN")
            self.size = database_size(self._db)  # the first read begins the snapshot
        except BaseException:
            self._db.close()
            raise

    def copy_to(self, path: Path) -> None:
        """Copy the database to a new file."""
        with mapped_errors(self._place):
            copy = apsw.Connection(str(path))
            try:
                copy.execute("PRAGMA synchronous = OFF")
                with copy.backup("main", self._db, "main") as backup:
                    while not backup.done:
                        backup.step(_COPIED_PAGES)
            finally:
                copy.close()

    def close(self) -> None:
        self._db.close()


@contextmanager
def mapped_errors(place: str) -> Iterator[None]:
    try:
        yield
    except apsw.Error as error:
        raise to_qo_error(f"the replica of {place}", error) from error


def database_size(db: apsw.Connection) -> int:
    size: int = db.execute("PRAGMA page_count").get * db.execute("PRAGMA page_size").get
    return size
