"""Locks between processes: a fixed number of lock files, chosen by the hash of the key."""

import contextlib
import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.errors import StorageError

_LOCK_FILES = 64
_LOCK_TIMEOUT = 10.0  # a holder needs milliseconds, unless its process is stopped
_FIRST_DELAY, _MAX_DELAY = 0.0005, 0.01


@contextlib.contextmanager
def locked(folder: Path, key: str, mode: int) -> Iterator[None]:
    """Hold the key's lock. The file is opened every time, so that the lock also excludes threads of this process.

    Raises StorageError if the lock stays taken for 10 s.
    """
    path = folder / f"{zlib.crc32(key.encode()) % _LOCK_FILES:02}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        deadline, backoff = boot_clock() + _LOCK_TIMEOUT, Backoff(_FIRST_DELAY, _MAX_DELAY, factor=1.5)
        while not _try(descriptor):
            if boot_clock() > deadline:
                raise StorageError(f"{path} has been locked for {_LOCK_TIMEOUT:g} s; is a process stopped?")
            time.sleep(backoff.next())
        yield
    finally:
        os.close(descriptor)  # closing releases the lock, also when the process dies


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
