"""Temporary files, before they are renamed. A process removes the temporary files of dead processes."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from qo.buckets.folder.directories import Directories
from qo.buckets.folder.files import flush_folder, write_file
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, StorageError

_MAX_AGE = 3600.0  # after this a temporary file is stale, on whichever host it was written
_MAX_ATTEMPTS = 20  # at creating a directory that other processes remove because it is empty


class TempFiles:
    def __init__(self, folder: Path, folders: Directories) -> None:
        self._folder, self._folders = folder, folders
        self._host = socket.gethostname()

    def open(self) -> None:
        self._folders.make(self._folder)
        for temp_file in list(self._folder.iterdir()):
            if self._is_stale(temp_file):
                temp_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def write(self, data: bytes, version: str, now: float) -> Iterator[Path]:
        temp_file = self._folder / f"{self._host}-{os.getpid()}-{version}"
        write_file(temp_file, data, version, now, self._folders.modes.file)
        try:
            yield temp_file
        finally:
            temp_file.unlink(missing_ok=True)

    def _is_stale(self, temp_file: Path) -> bool:
        host, _, pid = temp_file.name.rpartition("-")[0].rpartition("-")
        if host == self._host and pid.isdecimal() and not _is_alive(int(pid)):
            return True
        try:
            return system_clock() - temp_file.stat().st_mtime > _MAX_AGE
        except FileNotFoundError:
            return False


def place(temp_file: Path, path: Path, move: Callable[[Path, Path], None], folders: Directories) -> None:
    """Move a temporary file to its path with link(2) or rename(2), and make that durable.

    Raises OutcomeUnknown if the directory cannot be flushed, and FileExistsError if link(2) finds the name taken.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            folders.make(path.parent)
            move(temp_file, path)
        except FileNotFoundError:
            if not temp_file.exists():
                raise
            continue  # another process removed the empty directory
        try:
            flush_folder(path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"{path} is written, but the disk did not confirm it: {error}") from error
        return
    raise StorageError(f"other processes keep removing {path.parent}; try again")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
