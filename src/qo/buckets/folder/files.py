"""Files that survive a power failure: written to a temporary file, flushed, renamed, and the directory flushed.

A blob is one file: a header line of fixed length with its version, its date and a checksum, then the data. The version
is stored in the file because modification times repeat within a tick, and so that a read opens one file. A version
starts with an increasing number, so that versions sort, and ends with random digits, so that no two writes share one.

The content of a damaged file is returned after the byte DAMAGED. The layout then sets the object aside, like any object
that it cannot decode.
"""

import contextlib
import os
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from qo.bucket import Blob
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
