"""The files of an open database: one engine writes at a time, and checks that the files are still at their paths."""

import os
from pathlib import Path

from qo.engines.sqlite.file_locks import FileLocks, identity
from qo.errors import OutcomeUnknown, StorageError


class OpenFile:
    """Detects deleted or replaced files. Writes to a deleted file succeed and are lost when it is closed."""

    def __init__(self, path: Path, real: Path, locks: FileLocks) -> None:
        """`real`: the file that SQLite opened, links resolved. Its log is beside that file."""
        self._path = path
        self._locks = locks
        # Strings, because os.stat is called at every commit and converting a Path costs as much as the call.
        self._identities = [(name, *identity(name)) for name in (str(path), f"{real}-wal", f"{real}-shm")]

    def begin_write(self) -> None:
        """Exclude other engines. Raises StorageError, before anything is written, if the file is not at its path."""
        self._locks.begin_write(self)
        trouble = self.trouble()
        if trouble:
            self._locks.end_write()
            raise StorageError(f"{trouble}; nothing of this call was stored")

    def end_write(self) -> None:
        self._locks.end_write()

    def check_committed(self) -> None:
        trouble = self.trouble()
        if trouble:
            raise OutcomeUnknown(f"{trouble}; this call may be lost")

    def check(self) -> None:
        trouble = self.trouble()
        if trouble:
            raise StorageError(trouble)

    def trouble(self) -> str:
        """Why writes to the open files would not be found at the path; empty if they would."""
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
