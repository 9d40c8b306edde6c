"""Files that survive a power cut: written beside, flushed, put in place in one step, and the folder flushed too.

A blob is one file: a line of fixed length that tells its version, its date and a checksum, then the data. The version
is in the file, since modification times repeat within a tick; a read is one open. It begins with a number that grows,
so that old versions sort, and ends in chance, so that no two writes ever share one.

A file that is damaged is handed out as the byte DAMAGED and what it holds: a layout sets that one object aside, as it
does with any object that it cannot read, and everything else goes on.
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
_HEAD = 3 + 1 + 24 + 1 + 20 + 1 + 8 + 1  # bytes: magic, version, date in microseconds, checksum


class Modes(NamedTuple):
    """Of what is created. A stricter umask makes it stricter."""

    file: int
    folder: int


class FileHeader(NamedTuple):
    version: str
    written_at: float
    checksum: int

    number: int  # grows with every write


def new_version(number: int) -> str:
    return f"{number:08x}{os.urandom(8).hex()}"


def read_head(path: Path) -> FileHeader | None:
    """None if there is no file. One that is damaged or of another program has a version too, so it can be replaced."""
    try:
        with path.open("rb", buffering=0) as file:
            first = file.read(_HEAD)
            return _parse(first) or _damaged_head(first + file.read(), file.fileno())
    except FileNotFoundError:
        return None


def read_blob(path: Path) -> Blob | None:
    """None if there is no file. What is damaged, or was written by another program, follows the byte DAMAGED."""
    try:
        with path.open("rb", buffering=0) as file:
            content = file.read()
            head, data = _parse(content[:_HEAD]), content[_HEAD:]
            if head is None:
                head, data = _damaged_head(content, file.fileno()), DAMAGED + content
            elif zlib.crc32(data) != head.checksum:
                data = DAMAGED + data
    except FileNotFoundError:
        return None
    return Blob(data, head.version, head.written_at)


def write_file(path: Path, data: bytes, version: str, now: float, mode: int) -> None:
    """A whole file, flushed to the disk."""
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
    """Make names durable: those just added to a folder, or removed. One removed meanwhile had nothing to keep."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def modes_below(root: Path) -> Modes:
    """For their owner alone; and for a group, if the root was made for one to share: mode 2770."""
    with contextlib.suppress(OSError):  # there is none yet, or nothing of it can be read
        mode = root.stat().st_mode
        if mode & stat.S_ISGID and mode & stat.S_IWGRP:
            return Modes(file=0o660, folder=0o770)
    return Modes(file=0o600, folder=0o700)


def make_folder(folder: Path) -> None:
    """A folder and those above it, each durable in the one above before anything is put into it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    flush_folder(folder.parent)


def remove_empty(folder: Path, root: Path) -> Path:
    """Remove a folder, and those above it up to the root, while they are empty. Returns the first that stays."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # someone else was first
        except OSError:
            break
        folder = folder.parent
    return folder


def _parse(head: bytes) -> FileHeader | None:
    """None: it is not the first line of a file of qo's."""
    parts = head[:-1].split(b" ")
    if len(head) != _HEAD or head[-1:] != b"\n" or len(parts) != 4 or parts[0] != _MAGIC:  # noqa: PLR2004 - see above
        return None
    try:
        version = parts[1].decode("ascii")
        return FileHeader(version, int(parts[2]) / 1_000_000, int(parts[3], 16), int(version[:8], 16))
    except ValueError:
        return None


def _damaged_head(content: bytes, descriptor: int) -> FileHeader:
    return FileHeader(f"damaged-{zlib.crc32(content):08x}", os.fstat(descriptor).st_mtime, 0, 0)
