"""Keys as paths, and back. A file's name ends in `=`, a folder's does not: `a` and `a/b` can be keys at once.

Upper case and colons are written `%41`, since some file systems fold the one and refuse the other.
"""

import re
from collections.abc import Iterator
from os import DirEntry, scandir
from pathlib import Path
from urllib.parse import unquote

from qo.buckets.key import check_key

_MARK = "="
_FOREIGN = re.compile(r"[^0-9a-z_./-]")


def path_of(root: Path, key: str) -> Path:
    return root / f"{_escape(check_key(key))}{_MARK}"


def walk(root: Path, prefix: str, after: str) -> Iterator[str]:
    """Keys in byte order, without opening a file. Folders that hold nothing wanted are not entered."""
    folder, _, _ = prefix.rpartition("/")
    start = f"{folder}/" if folder else ""
    return _walk(root / _escape(folder) if folder else root, start, prefix, after)


def _walk(folder: Path, start: str, prefix: str, after: str) -> Iterator[str]:
    try:
        with scandir(folder) as entries:
            found = sorted(name for entry in entries if (name := _name(entry, start)) is not None)
    except (FileNotFoundError, NotADirectoryError):
        return  # its last blob was removed while we looked
    for name in found:
        if not name.endswith("/"):
            if name.startswith(prefix) and name > after:
                yield name
        elif _may_hold(name, prefix, after):
            yield from _walk(folder / _escape(name[len(start) : -1]), name, prefix, after)


def _name(entry: DirEntry[str], start: str) -> str | None:
    """A key, or what the keys in a folder begin with: slash included, so that both sort as keys do."""
    if entry.name.startswith("."):
        return None  # our own notes, or a foreign file
    if entry.name.endswith(_MARK):
        return start + unquote(entry.name[:-1])
    return f"{start}{unquote(entry.name)}/" if entry.is_dir(follow_symlinks=False) else None


def _may_hold(folder: str, prefix: str, after: str) -> bool:
    wanted = folder.startswith(prefix) or prefix.startswith(folder)
    return wanted and (after < folder or after.startswith(folder))


def _escape(key: str) -> str:
    escaped = _FOREIGN.sub(lambda found: f"%{ord(found[0]):02x}", key)
    return re.sub(r"(^|/)\.", r"\1%2e", escaped)  # a leading dot is ours
