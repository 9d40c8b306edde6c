"""A log handler that keeps threads from waiting for each other at every line."""

import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import RLock, Thread
from typing import Any, TextIO
from weakref import WeakSet

MAX_WAITING = 1000  # lines
_INTERVAL = 0.005  # seconds between two writes of routine lines
_MAX_WRITE_SIZE = getattr(select, "PIPE_BUF", 512)  # bytes; a larger write to a pipe may be mixed with others


class LineHandler(logging.Handler):
    """Writes lines to a stream: routine ones in a thread of its own, many in one call, the others immediately.

    Each write gives up the GIL. If the threads of handlers wrote a line for each quick task, they and the main thread
    would hand the GIL around at every line, and that takes longer than the line. A line that is not routine, such as a
    warning, is written before its call returns, with all lines before it. A process that is killed loses the routine
    lines of its last milliseconds. Several processes may write to one pipe: no line is mixed with those of others.
    """

    def __init__(self, stream: TextIO, is_routine: Callable[[logging.LogRecord], bool]) -> None:
        super().__init__()
        self._stream, self._is_routine = stream, is_routine
        self._is_immediate = False  # True: no line is routine
        self._last: logging.LogRecord | None = None  # a routine one
        self.begin()
        _handlers.add(self)

    def begin(self) -> None:
        """Start without lines."""
        self._lines: deque[str] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # False: end the thread
        self._is_awake = False  # True: the thread looks at the lines once more before it waits
        self._has_thread = False
        self._lock = RLock()  # held while lines are written
        self._is_writing = self._writes_again = False

    def begin_in_child(self) -> None:
        """Start in a forked process, whose parent writes the lines that were waiting.

        A forked process usually ends with `os._exit`, which would lose lines that wait.
        """
        self.begin()
        self._is_immediate = True

    def handle(self, record: logging.LogRecord) -> bool:
        """As the method that this replaces, without its lock."""
        passed: Any = self.filter(record)  # since Python 3.12, it may be another record
        if passed:
            self.emit(passed if isinstance(passed, logging.LogRecord) else record)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record) + "\n")
            if self._is_immediate or not self._is_routine(record) or len(self._lines) > MAX_WAITING:
                self.flush()
                return
            self._last = record
            if not self._is_awake:
                self._wakeups.put(True)
                self._start_thread()
        except Exception:  # noqa: BLE001 - `logging` decides what becomes of it
            self.handleError(record)

    def flush(self) -> None:
        with self._lock:
            self._writes_again = True
            if self._is_writing:  # a signal handler has interrupted this method in the same thread
                return
            self._is_writing = True
            try:
                while self._writes_again:
                    self._writes_again = False
                    lines = [self._lines.popleft() for _ in range(len(self._lines))]  # other threads add lines
                    for text in _writes(lines):
                        self._stream.write(text)
                        self._stream.flush()
            finally:
                self._is_writing = False

    def close(self) -> None:
        self._is_immediate = True
        self._wakeups.put(False)
        self._flush()
        super().close()

    def _start_thread(self) -> None:
        with self._lock:
            if self._has_thread:
                return
            try:
                Thread(target=self._write, args=(self._wakeups,), name="qo-log", daemon=True).start()
                self._has_thread = True
            except RuntimeError:  # no more threads can be started, or the interpreter is ending
                self.flush()

    def _write(self, wakeups: SimpleQueue[bool]) -> None:
        """The main function of the thread."""
        while wakeups.get():
            self._is_awake = True
            while self._lines:
                self._flush()
                time.sleep(_INTERVAL)
            self._is_awake = False
            self._flush()  # a line that came when the thread was no longer waking up for it

    def _flush(self) -> None:
        try:
            if self._lines:
                self.flush()
        except Exception:  # noqa: BLE001 - `logging` decides what becomes of it
            if self._last is not None:
                self.handleError(self._last)


def _writes(lines: Iterable[str]) -> Iterator[str]:
    """The lines in as few texts as a pipe takes in one piece. Only a line that is longer than that is longer."""
    some: list[str] = []
    size = 0
    for line in lines:
        length = len(line.encode("ascii", "backslashreplace"))  # no encoding of a stream takes more bytes
        if some and size + length > _MAX_WRITE_SIZE:
            yield "".join(some)
            some, size = [], 0
        some.append(line)
        size += length
    if some:
        yield "".join(some)


_handlers: WeakSet[LineHandler] = WeakSet()


def _begin_in_child() -> None:
    for handler in list(_handlers):
        handler.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
