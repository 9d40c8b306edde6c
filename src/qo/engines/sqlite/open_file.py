"""The files of an open database: one engine writes at a time, and checks that the files are still at their paths."""

import os
import sys
from pathlib import Path

from qo.clock import Clock, boot_clock
from qo.engines.sqlite.file_locks import FileLocks, identity
from qo.errors import OutcomeUnknown, StorageError

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


class OpenFile:
    """Detects deleted or replaced files. Writes to a deleted file succeed and are lost when it is closed."""

    def __init__(self, path: Path, real: Path, locks: FileLocks, clock: Clock, elapsed: Clock = boot_clock) -> None:
        """`real`: the file that SQLite opened, links resolved. Its log is beside that file."""
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

    def problem(self) -> str:
        """Why writes to the open files would not be found at the path; empty if they would.

        While the folder does not change, its files are where they were: one call instead of three, twice per commit.
        A second after the last check of all files, they are checked again.
        """
        if not self._has_one_folder:
            return self._missing()
        try:
            found = os.stat(self.folder)  # noqa: PTH116 - see above
            state: _FolderState | None = (found.st_dev, found.st_ino, found.st_ctime_ns)
        except OSError:
            state = None
        now = self._elapsed()
        if state is not None and state == self._sound_state and now < self._check_at:
            return ""
        problem = self._missing()
        self._check_at = now + _CHECK_INTERVAL
        self._sound_state = state if state is not None and not problem and self._is_settled(state) else None
        return problem

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
