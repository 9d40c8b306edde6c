"""Files that survive a power failure: written to a temporary file, flushed, renamed, and the directory flushed.

A blob is one file: a header line of fixed length with its version, its date and a checksum, then the data. The version
is stored in the file because modification times repeat within a tick, and so that a read opens one file. A version
starts with an increasing number, so that versions sort, and ends with random digits, so that no two writes share one.

The content of a damaged file is returned after the byte DAMAGED. The layout then sets the object aside, like any object
that it cannot decode.

An existing directory may not be durable yet: the process that created it may not have flushed the parent, or may have
died. A writer therefore flushes the parent's entries itself, unless they are unchanged since its last flush.
"""

import contextlib
import errno
import os
import socket
import stat
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from qo.bucket import Blob
from qo.clock import Clock, system_clock
from qo.errors import OutcomeUnknown, StorageError
from qo.model import DAMAGED

_MAGIC = b"qo1"
_HEADER_SIZE = 3 + 1 + 24 + 1 + 20 + 1 + 8 + 1  # bytes: magic, version, date in microseconds, checksum


class Modes(NamedTuple):
    """Permissions of new files and directories. The process's umask can restrict them further."""

    file: int
    folder: int


class FileHeader(NamedTuple):
    version: str
    written_at: float
    checksum: int

    number: int  # increases with every write


def new_version(number: int) -> str:
    return f"{number:08x}{os.urandom(8).hex()}"


def read_header(path: Path) -> FileHeader | None:
    """The header, or None if there is no file. A damaged or foreign file gets a version, so that it can be replaced."""
    try:
        with path.open("rb", buffering=0) as file:
            first = file.read(_HEADER_SIZE)
            return _parse(first) or _damaged_header(first + file.read(), file.fileno())
    except FileNotFoundError:
        return None


def read_blob(path: Path) -> Blob | None:
    """The blob, or None if there is no file. The content of a damaged or foreign file follows the byte DAMAGED."""
    try:
        with path.open("rb", buffering=0) as file:
            content = file.read()
            head, data = _parse(content[:_HEADER_SIZE]), content[_HEADER_SIZE:]
            if head is None:
                head, data = _damaged_header(content, file.fileno()), DAMAGED + content
            elif zlib.crc32(data) != head.checksum:
                data = DAMAGED + data
    except FileNotFoundError:
        return None
    return Blob(data, head.version, head.written_at)


def write_file(path: Path, data: bytes, version: str, now: float, mode: int) -> None:
    """Write a new file and flush it to disk. The file is removed if that fails."""
    head = b"%s %s %020d %08x\n" % (_MAGIC, version.encode(), round(now * 1_000_000), zlib.crc32(data))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        rest = memoryview(head + data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Make added and removed names in a directory durable. A missing directory is ignored."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def modes_below(root: Path) -> Modes:
    """Private to the owner; shared with the group if the root is set up for one (mode 2770)."""
    with contextlib.suppress(OSError):  # the root does not exist, or cannot be read
        mode = root.stat().st_mode
        if mode & stat.S_ISGID and mode & stat.S_IWGRP:
            return Modes(file=0o660, folder=0o770)
    return Modes(file=0o600, folder=0o700)


def make_folder(folder: Path) -> None:
    """Create a directory and its missing parents. Each is durable before the next one is created."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    flush_folder(folder.parent)


def remove_empty(folder: Path, root: Path) -> Path:
    """Remove the directory and its parents, up to the root, while they are empty. Return the first that stays."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # another process removed it
        except OSError:
            break
        folder = folder.parent
    return folder


def _parse(head: bytes) -> FileHeader | None:
    """None if these bytes are not the header of a qo file."""
    parts = head[:-1].split(b" ")
    if len(head) != _HEADER_SIZE or head[-1:] != b"\n" or len(parts) != 4 or parts[0] != _MAGIC:  # noqa: PLR2004 - see above
        return None
    try:
        version = parts[1].decode("ascii")
        return FileHeader(version, int(parts[2]) / 1_000_000, int(parts[3], 16), int(version[:8], 16))
    except ValueError:
        return None


def _damaged_header(content: bytes, descriptor: int) -> FileHeader:
    return FileHeader(f"damaged-{zlib.crc32(content):08x}", os.fstat(descriptor).st_mtime, 0, 0)


_MTIME_GRANULARITY = 0.1  # two changes within one tick of the file system's clock have the same mtime
_MAX_CACHED = 10_000
_MAX_DIRECTORY_ATTEMPTS = 100


class Directories:
    """Creates directories that survive a power failure: each is durable in its parent before it is used."""

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
        for _ in range(_MAX_DIRECTORY_ATTEMPTS):
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


_MAX_AGE = 3600.0  # after this a temporary file is stale, on whichever host it was written
_MAX_CREATE_ATTEMPTS = 20  # at creating a directory that other processes remove because it is empty


class TempFiles:
    """Temporary files, before they are renamed. A process removes the temporary files of dead processes."""

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
    for _ in range(_MAX_CREATE_ATTEMPTS):
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
