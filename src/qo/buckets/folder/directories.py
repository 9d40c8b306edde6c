"""Creates directories that survive a power failure: a directory is durable in its parent before it is used.

An existing directory may not be durable yet: the process that created it may not have flushed the parent, or may have
died. A writer therefore flushes the parent's entries itself, unless they are unchanged since its last flush.
"""

import contextlib
import errno
import os
from functools import cached_property
from pathlib import Path

from qo.buckets.folder.files import Modes, flush_folder, make_folder, modes_below
from qo.clock import Clock, system_clock

_MTIME_GRANULARITY = 0.1  # two changes within one tick of the file system's clock have the same mtime
_MAX_CACHED = 10_000
_MAX_ATTEMPTS = 100


class Directories:
    def __init__(self, root: Path, clock: Clock = system_clock) -> None:
        self._root, self._above, self._clock = root, root.parent, clock
        self._flushed: dict[Path, tuple[int, int]] = {}  # by directory: its inode and mtime at the last flush

    @cached_property
    def modes(self) -> Modes:
        return modes_below(self._root)

    def make(self, folder: Path) -> None:
        """Create a directory below the root, and its missing parents."""
        if folder in (self._above, folder.parent):
            make_folder(folder)
            return
        for _ in range(_MAX_ATTEMPTS):
            self.make(folder.parent)
            with contextlib.suppress(FileNotFoundError):  # another process removes directories that become empty
                if not folder.is_dir():
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir(self.modes.folder)
                self._flush_entries(folder.parent)
                return
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))

    def _flush_entries(self, folder: Path) -> None:
        about = folder.stat()
        state = (about.st_ino, about.st_mtime_ns)
        if self._flushed.get(folder) == state:
            return
        flush_folder(folder)
        if self._clock() - about.st_mtime > _MTIME_GRANULARITY:
            if len(self._flushed) >= _MAX_CACHED:
                self._flushed.clear()
            self._flushed[folder] = state
