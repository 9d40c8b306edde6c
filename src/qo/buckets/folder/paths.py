"""Maps keys to paths and back. File names end in `=` and directory names do not, so `a` and `a/b` can both be keys.

Upper-case letters and colons are percent-encoded: some file systems fold case or reject colons.
"""

import re
from collections.abc import Iterator
from os import DirEntry, scandir
from pathlib import Path
from urllib.parse import unquote

from qo.buckets.key import can_begin_key, check_key

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
        return  # the last blob was removed meanwhile
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
