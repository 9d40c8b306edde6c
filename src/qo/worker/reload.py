"""Detects changed Python files by polling, which needs no further package."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

_POLL_INTERVAL = 0.5  # seconds
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})

Stamps = dict[str, tuple[int, int]]


async def changes(root: Path, *, interval: float = _POLL_INTERVAL) -> AsyncIterator[str]:
    """Poll `root`. Yields the path of one changed, new or removed file for each poll that found any."""
    before = await asyncio.to_thread(stamps, root)
    while True:
        await asyncio.sleep(interval)
        now = await asyncio.to_thread(stamps, root)
        if now != before:
            different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
            before = now
            yield different[0].removeprefix(f"{root}{os.sep}")


def stamps(root: Path) -> Stamps:
    """The modification time and size of each file. The size matters because two writes may have the same time."""
    found: Stamps = {}
    for path in _files(root):
        try:
            stat = path.stat()
        except OSError:  # removed after it was listed
            continue
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
