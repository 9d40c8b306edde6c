"""Folders that are there to stay: each is durable in the one above before anything is put into it.

A folder that is there may have been made by someone who has not flushed it yet, or died before: finding it is no proof.
So whoever puts something into it flushes the names above it, unless nothing was added there since it last did.
"""

import contextlib
import errno
import os
from functools import cached_property
from pathlib import Path

from qo.buckets.folder.files import Modes, flush_folder, make_folder, modes_below
from qo.clock import Clock, system_clock

_SETTLED = 0.1  # seconds: a file system's clock ticks, and what happens within one tick has one date
_MOST = 10_000
_TRIES = 100


class Directories:
    def __init__(self, root: Path, clock: Clock = system_clock) -> None:
        self._root, self._above, self._clock = root, root.parent, clock
        self._flushed: dict[Path, tuple[int, int]] = {}  # by folder: which one it was, and when it was last changed

    @cached_property
    def modes(self) -> Modes:
        return modes_below(self._root)

    def make(self, folder: Path) -> None:
        """A folder below the root, and those between."""
        if folder in (self._above, folder.parent):
            make_folder(folder)
            return
        for _ in range(_TRIES):
            self.make(folder.parent)
            with contextlib.suppress(FileNotFoundError):  # someone removes folders that have become empty
                if not folder.is_dir():
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir(self.modes.folder)
                self._keep_names(folder.parent)
                return
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))

    def _keep_names(self, folder: Path) -> None:
        about = folder.stat()
        state = (about.st_ino, about.st_mtime_ns)
        if self._flushed.get(folder) == state:
            return
        flush_folder(folder)
        if self._clock() - about.st_mtime > _SETTLED:
            if len(self._flushed) >= _MOST:
                self._flushed.clear()
            self._flushed[folder] = state
