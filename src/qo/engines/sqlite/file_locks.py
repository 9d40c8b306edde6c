"""qo's own locks on a database file, which no close() in this process can drop.

POSIX locks belong to the process: closing any descriptor of a file drops every lock that the process has on it. An
open() and close() of the file, for example by Python's `sqlite3`, therefore unlocks it under this engine's SQLite, and
another SQLite may then delete the write-ahead log or write at the same time. Locks of an open file description (OFD,
Linux) stay until that description is closed, and conflict with POSIX locks of every process, including this one. Four
are held:

- shared, on the bytes that SQLite locks exclusively before it deletes the log, so that no process deletes it;
- shared, on the byte of the shared memory that marks it as used, so that no process truncates it;
- exclusive, during each transaction, on a byte that SQLite does not use, so that two engines never write at the same
  time;
- shared, during each transaction, on the byte that SQLite locks exclusively to rebuild the index of the log. A reader
  does that if a writer seems to have died between the two copies of the index's header. If the writer lives and commits
  in the meantime, the rebuilt index lacks that commit, and the next one overwrites it.

Other systems have no such locks; `file.py` still detects a log that disappeared.
"""

import errno
import os
import struct
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Condition, Lock
from typing import Any, NamedTuple

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.errors import StorageError

if sys.platform != "win32":
    import fcntl

_LOCK_TIMEOUT = 30.0
_FIRST_DELAY, _MAX_DELAY = 0.0002, 0.005  # between attempts to lock
_PENDING_BYTE = 0x40000000  # SQLite's lock bytes begin here, in the database file
_OFD = sys.platform == "linux"


class _Range(NamedTuple):
    start: int
    length: int


_SHARED_RANGE = _Range(_PENDING_BYTE + 2, 510)  # read-locked by every connection, write-locked to delete the log
_WRITE_BYTE = _Range(_PENDING_BYTE + 512, 1)  # qo's own: the first byte after SQLite's
_PROBE_BYTE = _Range(_PENDING_BYTE + 513, 1)  # never locked
_IN_USE_BYTE = _Range(128, 1)  # of the shared memory: the "dead man's switch"
_RECOVER_BYTE = _Range(122, 1)  # of the shared memory: write-locked to rebuild the index of the log


_Step = tuple[Any, ...]  # a function of C and its arguments


class WriteSteps(NamedTuple):
    """The calls that lock and unlock a file for one transaction. Each raises OSError if the lock is not free.

    The locks conflict with those of every other engine and of `FileLocks`. Empty where a system has no such locks.
    """

    lock: tuple[_Step, ...] = ()
    unlock: tuple[_Step, ...] = ()


class FileLocks:
    """The locks of this process on one file, shared by all its engines."""

    def __init__(self, path: Path) -> None:
        self.engines = 0
        self._path = path
        self._writing = Condition()  # between engines of this process, which share the descriptor
        self._writer: object = None  # the engine that writes
        self._descriptors: list[int] = []
        self._lent: list[int] = []  # all descriptors for `WriteSteps`
        self._free_steps: list[WriteSteps] = []  # those that no engine uses
        self._is_writable = False
        if _OFD:
            self._open()

    def _open(self) -> None:
        try:
            self._descriptors.append(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
            self._is_writable = True
        except PermissionError:
            self._descriptors.append(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            self._descriptors.append(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))

    def keep_log(self) -> None:
        """Prevent other processes from deleting the write-ahead log."""
        if self._descriptors:
            self._wait_for(self._descriptors[0], "RDLCK", _SHARED_RANGE)

    def keep_shared_memory(self, path: Path) -> None:
        """Prevent other processes from truncating the shared memory. SQLite must have opened it before."""
        with _registry:
            if len(self._descriptors) == 1:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                self._wait_for(self._descriptors[1], "RDLCK", _IN_USE_BYTE)

    def begin_write(self, engine: object) -> None:
        """Exclude all other engines on the file from writing, until `end_write`.

        An engine may call this again without `end_write`, because an asynchronous exception such as KeyboardInterrupt
        can interrupt the writing thread at any instruction. Raises StorageError after 30 s.
        """
        with self._writing:
            if self._writer is not None and not self._writing.wait_for(lambda: self._is_free(engine), _LOCK_TIMEOUT):
                raise StorageError(_busy(self._path))
            self._writer = engine
        if self._is_writable:  # otherwise SQLite refuses the write with a reason
            try:
                self._wait_for(self._descriptors[0], "WRLCK", _WRITE_BYTE)
            except BaseException:
                self._free()
                raise

    def keep_index(self) -> None:
        """Prevent other connections from rebuilding the index of the log, until `end_write`.

        Call after the transaction has begun: SQLite rebuilds the index at its beginning, if a writer has died.
        """
        if self._is_writable and len(self._descriptors) > 1:
            self._wait_for(self._descriptors[1], "RDLCK", _RECOVER_BYTE)

    def _is_free(self, engine: object) -> bool:
        return self._writer is None or self._writer is engine

    def end_write(self) -> None:
        try:
            if self._is_writable:
                if len(self._descriptors) > 1:
                    _lock(self._descriptors[1], "UNLCK", _RECOVER_BYTE)
                _lock(self._descriptors[0], "UNLCK", _WRITE_BYTE)
        finally:
            self._free()

    def _free(self) -> None:
        with self._writing:
            self._writer = None
            self._writing.notify()

    def borrow_steps(self, shared_memory: str) -> WriteSteps:
        """Locks for one connection whose calls use no other method of this class. Return them with `return_steps`."""
        with _registry:
            if self._free_steps:
                return self._free_steps.pop()
            if not self._is_writable or not _has_locks(self._descriptors[0]):
                return WriteSteps()
            lent = self._lent
            lent.append(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
            lent.append(os.open(shared_memory, os.O_RDONLY | os.O_CLOEXEC))
            file, index = lent[-2:]
            return WriteSteps(
                lock=(_step(file, "WRLCK", _WRITE_BYTE), _step(index, "RDLCK", _RECOVER_BYTE)),
                unlock=(_step(index, "UNLCK", _RECOVER_BYTE), _step(file, "UNLCK", _WRITE_BYTE)),
            )

    def return_steps(self, steps: WriteSteps) -> None:
        """The descriptors stay open for the next engine: closing them would drop SQLite's locks on the file."""
        if steps.lock:
            self._free_steps.append(steps)

    def unlock(self) -> None:
        """Allow SQLite to delete the log when it closes."""
        for descriptor, range_ in zip(self._descriptors, (_SHARED_RANGE, _IN_USE_BYTE), strict=False):
            _lock(descriptor, "UNLCK", range_)

    def close(self) -> None:
        """Call only after SQLite has closed the file: closing drops its locks."""
        self._free_steps.clear()
        for descriptors in (self._descriptors, self._lent):
            while descriptors:
                os.close(descriptors.pop())

    def _wait_for(self, descriptor: int, kind: str, range_: _Range) -> None:
        """Poll, like the busy handler for SQLite's locks, because the kernel's wait has no timeout."""
        if _lock(descriptor, kind, range_):
            return
        began, backoff = boot_clock(), Backoff(_FIRST_DELAY, _MAX_DELAY, jitter=(0.5, 1.5))
        while not _lock(descriptor, kind, range_):
            if boot_clock() - began > _LOCK_TIMEOUT:
                raise StorageError(_busy(self._path))
            time.sleep(backoff.next())


def _busy(path: Path) -> str:
    return f"{path}: other processes held the write lock for 30 s; look for one that hangs, then try again"


def _lock(descriptor: int, kind: str, range_: _Range) -> bool:
    """Whether the lock was taken. False if another process, or SQLite in this process, holds a conflicting one."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(kind, range_))
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP}:  # not supported by this file system
            return True
        raise
    return True


def _has_locks(descriptor: int) -> bool:
    """Whether the file system supports these locks. Call at any time: a writer may hold locks on this descriptor."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock("UNLCK", _PROBE_BYTE))
    except OSError:
        return False
    return True


def _step(descriptor: int, kind: str, range_: _Range) -> _Step:
    return fcntl.fcntl, descriptor, fcntl.F_OFD_SETLK, _flock(kind, range_)


@cache
def _flock(kind: str, range_: _Range) -> bytes:
    """The structure for fcntl(2): type, whence, start, length, process (0 for OFD locks)."""
    return struct.pack("hhqqi4x", getattr(fcntl, f"F_{kind}"), os.SEEK_SET, range_.start, range_.length, 0)


_files: dict[tuple[int, int], FileLocks] = {}  # by device and inode
_registry = Lock()


def identity(path: Path | str) -> tuple[int, int]:
    """Device and inode, which identify a file while it is open."""
    found = Path(path).stat()
    return found.st_dev, found.st_ino


def acquire_locks(path: Path) -> FileLocks:
    """The locks of this process on a file that SQLite has open. Each engine acquires them once."""
    with _registry:
        key = identity(path)
        locks = _files.get(key)
        if locks is None:
            locks = FileLocks(path)
            if identity(path) != key:  # keep the descriptor: closing it could unlock a file of another engine
                raise StorageError(f"{path} was replaced while it was opened; try again")
            try:
                locks.keep_log()
            except BaseException:
                locks.close()
                raise
            _files[key] = locks
        locks.engines += 1
        return locks


def release_locks(locks: FileLocks, disconnect: Callable[[], None]) -> None:
    """Close one engine's connections. The last engine of this process on the file also closes the file."""
    with _registry:  # the file must not be opened before the descriptors are closed, because that drops its locks
        locks.engines -= 1
        if locks.engines:
            disconnect()
            return
        key = next(key for key, held in _files.items() if held is locks)
        del _files[key]
        locks.unlock()
        try:
            disconnect()
        finally:
            locks.close()


def _forget_after_fork() -> None:
    """A forked child shares the descriptions, and would keep the locks of a parent that was killed."""
    global _registry  # noqa: PLW0603 - a thread of the parent may hold the old one
    _registry = Lock()
    for locks in _files.values():
        locks.close()
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
