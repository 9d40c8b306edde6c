"""A bucket in a directory, safe for concurrent processes and across power failures.

File names end in `=` and directory names do not, so `a` and `a/b` can both be keys. Upper-case letters and colons are
percent-encoded: some file systems fold case or reject colons.

A creation uses link(2), which fails if the name exists. Every other write compares and renames under a lock. qo keeps
its own files in `.qo`: locks, temporary files, and old versions if `versions=true`.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from os import DirEntry, scandir
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from qo.backoff import Backoff
from qo.bucket import ANY, NEW, Blob, can_begin_key, check_key
from qo.buckets.folder.files import (
    Directories,
    FileHeader,
    TempFiles,
    flush_folder,
    new_version,
    place,
    read_blob,
    read_header,
    remove_empty,
)
from qo.buckets.thread_pool import ThreadPool
from qo.clock import Clock, boot_clock, system_clock
from qo.errors import Conflict, InvalidSetting, Refused, StorageError
from qo.safe_text import hide_password

_FILE_SUFFIX = "="
_ESCAPED = re.compile(r"[^0-9a-z_./-]")


def path_of(root: Path, key: str) -> Path:
    return root / f"{_escape(check_key(key))}{_FILE_SUFFIX}"


def walk(root: Path, prefix: str, after: str) -> Iterator[str]:
    """Yield keys in byte order without opening files. Directories that cannot hold a match are skipped."""
    if not can_begin_key(prefix):
        return iter(())
    folder, _, _ = prefix.rpartition("/")
    start = f"{folder}/" if folder else ""
    return _walk(root / _escape(folder) if folder else root, start, prefix, after)


def _walk(folder: Path, start: str, prefix: str, after: str) -> Iterator[str]:
    try:
        with scandir(folder) as entries:
            found = sorted(name for entry in entries if (name := _name(entry, start)) is not None)
    except (FileNotFoundError, NotADirectoryError):
        return  # the last blob was removed in the meantime
    for name in found:
        if not name.endswith("/"):
            if name.startswith(prefix) and name > after:
                yield name
        elif _may_hold(name, prefix, after):
            yield from _walk(folder / _escape(name[len(start) : -1]), name, prefix, after)


def _name(entry: DirEntry[str], start: str) -> str | None:
    """A key, or the prefix of a directory's keys. The prefix ends in a slash, so that both sort like keys."""
    if entry.name.startswith("."):
        return None  # qo's own directory, or a foreign file
    if entry.name.endswith(_FILE_SUFFIX):
        return start + unquote(entry.name[:-1])
    return f"{start}{unquote(entry.name)}/" if entry.is_dir(follow_symlinks=False) else None


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    may_match = folder.startswith(prefix) or prefix.startswith(folder)
    return may_match and (after < folder or after.startswith(folder))


def _escape(key: str) -> str:
    escaped = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02x}", key)
    return re.sub(r"(^|/)\.", r"\1%2e", escaped)  # names that start with a dot are reserved


_LOCK_FILES = 64
_LOCK_TIMEOUT = 10.0  # a holder needs milliseconds, unless its process is stopped
_FIRST_DELAY, _MAX_DELAY = 0.0005, 0.01


@contextlib.contextmanager
def locked(folder: Path, key: str, mode: int) -> Iterator[None]:
    """Hold the key's lock: one of a fixed number of lock files, chosen by the hash of the key.

    The file is opened every time, so that the lock also excludes threads of this process.

    Raises StorageError if the lock stays taken for 10 s.
    """
    path = folder / f"{zlib.crc32(key.encode()) % _LOCK_FILES:02}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        deadline, backoff = boot_clock() + _LOCK_TIMEOUT, Backoff(_FIRST_DELAY, _MAX_DELAY, factor=1.5)
        while not _try(descriptor):
            if boot_clock() > deadline:
                raise StorageError(f"{path} has been locked for {_LOCK_TIMEOUT:g} s; is a process stopped?")
            time.sleep(backoff.next())
        yield
    finally:
        os.close(descriptor)  # closing releases the lock, also when the process dies


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_MAX_THREADS = 8
_PAGE_SIZE = 1000  # keys listed in one call
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)


class FolderBucket:
    """Deleting a blob also deletes its old versions."""

    def __init__(self, root: Path, *, versions: bool = False, clock: Clock | None = None) -> None:
        self._root = root.absolute()  # resolved now, because the process may change its directory later
        self._locks = self._root / ".qo" / "locks"
        self._old = self._root / ".qo" / "versions"
        self._folders = Directories(self._root)
        self._temp_files = TempFiles(self._root / ".qo" / "temp", self._folders)
        self._keeps_versions = versions
        self._clock = clock or system_clock
        self._pool = ThreadPool(_MAX_THREADS)
        self._is_ready = False

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None) -> "FolderBucket":
        """Parse `file:///var/lib/qo?versions=true`. Options of other layers, such as `layout=`, are ignored."""
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc or not path.startswith("/") or path == "/":
            raise InvalidSetting(f"{hide_password(url)!r:.200} does not name a directory; write file:///var/lib/qo")
        wanted = parse_qs(parts.query).get("versions", ["false"])[-1].lower()
        return cls(Path(path), versions=wanted in ("1", "true", "yes"), clock=clock)

    async def get(self, key: str) -> Blob | None:
        return await self._pool.run(self._get, key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._pool.run(self._put, key, data, expected)

    async def delete(self, key: str) -> None:
        await self._pool.run(self._delete, key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        found = walk(self._root, prefix, after)
        while page := await self._pool.run(self._page, found):
            for key in page:
                yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._pool.run(self._versions, key)

    def now(self) -> float:
        return self._clock()

    def _get(self, key: str) -> Blob | None:
        with _storage_errors(self._root):
            return read_blob(path_of(self._root, key))

    def _put(self, key: str, data: bytes, expected: str) -> str:
        path = path_of(self._root, key)
        with _storage_errors(self._root):
            self._prepare()
            if expected == NEW:
                return self._create(path, key, data)
            with locked(self._locks, key, self._folders.modes.file):
                present = read_header(path)
                if expected != ANY and (present is None or present.version != expected):
                    raise Conflict(f"{key} was written by another process")
                return self._replace(path, key, data, present)

    def _create(self, path: Path, key: str, data: bytes) -> str:
        version = new_version(1)
        if path.exists():  # avoids writing and flushing a temporary file for nothing
            raise Conflict(f"{key} exists already")
        with self._temp_files.write(data, version, self._clock()) as temp_file:
            try:
                place(temp_file, path, os.link, self._folders)
            except FileExistsError:
                raise Conflict(f"{key} exists already") from None
        return version

    def _replace(self, path: Path, key: str, data: bytes, present: FileHeader | None) -> str:
        version = new_version(present.number + 1 if present else 1)
        if present and self._keeps_versions:
            self._save_version(path, key, present)
        with self._temp_files.write(data, version, self._clock()) as temp_file:
            place(temp_file, path, os.replace, self._folders)
        return version

    def _save_version(self, path: Path, key: str, present: FileHeader) -> None:
        """Runs before the replacement, so every saved version was once the current one and none is missing."""
        old = path_of(self._old, key)
        self._folders.make(old)
        with contextlib.suppress(FileExistsError):  # an earlier writer died before its replacement
            os.link(path, old / present.version)
        flush_folder(old)

    def _delete(self, key: str) -> None:
        path, old = path_of(self._root, key), path_of(self._old, key)
        with _storage_errors(self._root):
            if not path.exists():
                return
            self._prepare()
            with locked(self._locks, key, self._folders.modes.file):
                if old.is_dir():
                    for version in list(old.iterdir()):
                        version.unlink()
                    remove_empty(old, self._old)
                path.unlink(missing_ok=True)
                flush_folder(remove_empty(path.parent, self._root))

    def _versions(self, key: str) -> list[Blob]:
        path, old = path_of(self._root, key), path_of(self._old, key)
        with _storage_errors(self._root):
            names = sorted(old.iterdir()) if old.is_dir() else []
            old_blobs = {blob.version: blob for name in names if (blob := read_blob(name))}
            # read last: a concurrent replacement may hide its predecessor, but never the current blob
            present = read_blob(path)
            return (
                [*(blob for blob in old_blobs.values() if blob.version != present.version), present] if present else []
            )

    def _page(self, found: Iterator[str]) -> list[str]:
        with _storage_errors(self._root):
            return list(islice(found, _PAGE_SIZE))

    def _prepare(self) -> None:
        if not self._is_ready:
            self._folders.make(self._locks)
            self._temp_files.open()
            self._is_ready = True


@contextlib.contextmanager
def _storage_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = Refused if error.errno in _DENIED else StorageError
        raise kind(_advice(root, error)) from error


def _advice(root: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"there is no space left in {root}; free some and try again"
    if error.errno in _DENIED:
        return f"this user may not write {error.filename or root}; check its owner and mode"
    if root.exists() and not root.is_dir():
        return f"{root} is a file, not a directory; write sqlite:///... for a SQLite file"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"{error.filename or root} exists and is not a directory; remove or rename it"
    return f"{root} cannot be used: {error.strerror or error}"
