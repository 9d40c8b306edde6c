"""Which Python files changed: looked at from time to time, so that nothing has to be installed for it."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

_INTERVAL = 0.5  # seconds between two looks
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})

Stamps = dict[str, tuple[int, int]]


async def changes(root: Path, *, interval: float = _INTERVAL) -> AsyncIterator[str]:
    """One changed, new or removed file below `root` for every look at which there was one."""
    before = await asyncio.to_thread(stamps, root)
    while True:
        await asyncio.sleep(interval)
        now = await asyncio.to_thread(stamps, root)
        if now != before:
            different = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
            before = now
            yield different[0].removeprefix(f"{root}{os.sep}")


def stamps(root: Path) -> Stamps:
    """When each file was last written, and its size: two writes may share a tick of the clock."""
    found: Stamps = {}
    for path in _files(root):
        try:
            stat = path.stat()
        except OSError:  # gone between listing and looking
            continue
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
