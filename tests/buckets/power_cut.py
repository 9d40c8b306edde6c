"""A disk that loses everything that was not flushed: the worst that a power cut may leave of a folder.

The rules: a file's bytes last once the file is flushed, a name once its folder is. Whatever was not flushed may last or
not, each name for itself, each file up to any byte.
"""

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class File:
    def __init__(self) -> None:
        self.now, self.kept = b"", b""

    def flush(self) -> None:
        self.kept = self.now


class Folder:
    def __init__(self) -> None:
        self.now: dict[str, File | Folder] = {}
        self.kept: dict[str, File | Folder] = {}

    def flush(self) -> None:
        self.kept = dict(self.now)


class Disk:
    """Watches the calls of this process that change what is below `root`; its own flushes cost nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._top = Folder()
        self._descriptors: dict[int, File | Folder] = {}
        self._lock = threading.RLock()  # serialises calls of several threads, as a disk does

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        names = ("open", "write", "fsync", "close", "link", "replace", "mkdir", "rmdir", "unlink")
        real = {name: getattr(os, name) for name in names}
        for name in names:
            setattr(os, name, self._watch(real[name], getattr(self, f"_{name}")))
        try:
            yield
        finally:
            for name in names:
                setattr(os, name, real[name])

    def _watch(self, real: Any, note: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                answer = None if note == self._fsync and args[0] in self._descriptors else real(*args, **kwargs)
                note(answer, *args)
                return answer

        return call

    def after_a_cut(self, copy: Path, dice: random.Random, told: Callable[[], T]) -> T:
        """Write the files as they are after the power cut, and what had been acknowledged (`told`) by then."""
        with self._lock:
            _restore(self._top, copy, dice)
            return told()

    def _place(self, path: Any) -> tuple[Folder, str] | None:
        try:
            parts = Path(path).relative_to(self.root).parts
        except (TypeError, ValueError):
            return None
        folder = self._top
        for part in parts[:-1]:
            inner = folder.now[part]
            assert isinstance(inner, Folder)
            folder = inner
        return (folder, parts[-1]) if parts else None

    def _found(self, path: Any) -> File | Folder | None:
        if Path(path) == self.root:
            return self._top
        place = self._place(path)
        return None if place is None else place[0].now.get(place[1])

    # --- what each call does

    def _open(self, descriptor: int, path: Any, flags: int, *_: Any) -> None:
        place = self._place(path)
        if place is not None and flags & os.O_CREAT and place[1] not in place[0].now:
            place[0].now[place[1]] = File()
        node = self._found(path) if isinstance(path, str | os.PathLike) else None
        if node is not None:
            self._descriptors[descriptor] = node

    def _write(self, number: int, descriptor: int, data: Any) -> None:
        if isinstance(node := self._descriptors.get(descriptor), File):
            node.now += bytes(data)[:number]

    def _fsync(self, _: None, descriptor: int) -> None:
        if node := self._descriptors.get(descriptor):
            node.flush()

    def _close(self, _: None, descriptor: int) -> None:
        self._descriptors.pop(descriptor, None)

    def _link(self, _: None, old: Any, new: Any, *__: Any) -> None:
        node, place = self._found(old), self._place(new)
        if node is not None and place is not None:
            place[0].now[place[1]] = node

    def _replace(self, _: None, old: Any, new: Any, *__: Any) -> None:
        self._link(None, old, new)
        self._unlink(None, old)

    def _mkdir(self, _: None, path: Any, *__: Any) -> None:
        if place := self._place(path):
            place[0].now[place[1]] = Folder()

    def _unlink(self, _: None, path: Any, *__: Any) -> None:
        if place := self._place(path):
            place[0].now.pop(place[1], None)

    _rmdir = _unlink


def _restore(folder: Folder, copy: Path, dice: random.Random) -> None:
    copy.mkdir(exist_ok=True)
    for name in sorted(folder.now.keys() | folder.kept.keys()):
        before, after = folder.kept.get(name), folder.now.get(name)
        node = before if before is after or dice.random() < 0.5 else after
        if isinstance(node, Folder):
            _restore(node, copy / name, dice)
        elif node is not None:
            extra = node.now[len(node.kept) :]
            (copy / name).write_bytes(node.kept + extra[: dice.randint(0, len(extra))])
