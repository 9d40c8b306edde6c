"""Locks between processes: a handful of files, shared out over the keys."""

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

_LOCKS = 64
_PATIENCE = 10.0  # seconds; a holder needs milliseconds, unless it was stopped
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01  # seconds


@contextlib.contextmanager
def locked(folder: Path, key: str, mode: int) -> Iterator[None]:
    """The file is opened anew each time, so that the lock stands between threads as well as between processes."""
    place = folder / f"{zlib.crc32(key.encode()) % _LOCKS:02}"
    descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        deadline, backoff = boot_clock() + _PATIENCE, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, factor=1.5)
        while not _try(descriptor):
            if boot_clock() > deadline:
                raise StorageError(f"{place} has been locked for {_PATIENCE:g} s; is a process stopped?")
            time.sleep(backoff.next())
        yield
    finally:
        os.close(descriptor)  # and with it the lock, as the system does for a process that dies


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
