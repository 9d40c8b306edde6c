"""Files being written, before they are put in their place. A process that dies leaves its drafts to the next one."""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from qo.buckets.folder.directories import Directories
from qo.buckets.folder.files import flush_folder, write_file
from qo.clock import system_clock
from qo.errors import OutcomeUnknown, StorageError

_ABANDONED = 3600.0  # seconds after which a draft belongs to nobody, on whichever machine it was written
_TRIES = 20  # at making a folder that others remove because it is empty


class TempFiles:
    def __init__(self, folder: Path, folders: Directories) -> None:
        self._folder, self._folders = folder, folders
        self._host = socket.gethostname()

    def open(self) -> None:
        self._folders.make(self._folder)
        for draft in list(self._folder.iterdir()):
            if self._is_abandoned(draft):
                draft.unlink(missing_ok=True)

    @contextlib.contextmanager
    def write(self, data: bytes, version: str, now: float) -> Iterator[Path]:
        draft = self._folder / f"{self._host}-{os.getpid()}-{version}"
        write_file(draft, data, version, now, self._folders.modes.file)
        try:
            yield draft
        finally:
            draft.unlink(missing_ok=True)

    def _is_abandoned(self, draft: Path) -> bool:
        host, _, pid = draft.name.rpartition("-")[0].rpartition("-")
        if host == self._host and pid.isdecimal() and not _is_alive(int(pid)):
            return True
        try:
            return system_clock() - draft.stat().st_mtime > _ABANDONED
        except FileNotFoundError:
            return False


def place(draft: Path, path: Path, move: Callable[[Path, Path], None], folders: Directories) -> None:
    """Give a draft its name, by link(2) or rename(2), and make that durable."""
    for _ in range(_TRIES):
        try:
            folders.make(path.parent)
            move(draft, path)
        except FileNotFoundError:
            if not draft.exists():
                raise
            continue  # a folder was empty, and someone tidied it away
        try:
            flush_folder(path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"{path} is written but the disk does not say that it will last: {error}") from error
        return
    raise StorageError(f"{path.parent} is removed as often as it is made; try again")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
