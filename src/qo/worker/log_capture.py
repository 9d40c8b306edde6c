"""The last log lines of each attempt, which are stored with its outcome."""

import logging
from collections import deque

from qo.clock import iso
from qo.log_output import logged_task
from qo.model import Task, plural
from qo.model.text import LOG_LIMIT

MAX_LINES = 100
_SECONDS_LENGTH = len("2026-11-17T22:31:34")
_MAX_ATTEMPTS = 1000  # of which lines are kept; those of lost and abandoned attempts are never taken


class LastLines:
    """The last lines of one attempt, and how many earlier ones were dropped. No line is longer than LOG_LIMIT."""

    __slots__ = ("_dropped", "_lines", "_size")

    def __init__(self, first: str) -> None:
        self._lines = deque((first,))
        self._size, self._dropped = len(first), 0

    def add(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text) + 1
        while len(self._lines) > MAX_LINES or self._size > LOG_LIMIT:
            self._size -= len(self._lines.popleft()) + 1
            self._dropped += 1

    def text(self) -> str:
        dropped = [f"({plural(self._dropped, 'earlier line')} not kept)"] if self._dropped else []
        return "\n".join([*dropped, *self._lines])


class LineFormatter(logging.Formatter):
    """Time, level, logger and message, as in `2026-11-17T22:31:34.123Z info shop.mail: sent`."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0, iso(0.0)[:_SECONDS_LENGTH]  # the last second formatted, and its text

    def format(self, record: logging.LogRecord) -> str:
        whole, date = self._second
        if int(record.created) != whole:
            whole, date = self._second = int(record.created), iso(float(int(record.created)))[:_SECONDS_LENGTH]
        at = f"{date}.{int((record.created - whole) * 1000):03}Z"
        text = f"{at} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _key(task: Task) -> str:
    return f"{task.id} {task.attempt}"


class LogCapture(logging.Handler):
    """Keeps the lines that handlers log in this process. It has no lock: a worker may stop a thread anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._line_formatter = LineFormatter()
        # By attempt. Most attempts log one line, and strings, unlike containers, are no work for the garbage collector.
        self._first: dict[str, str] = {}
        self._several: dict[str, LastLines] = {}  # of attempts with more than one line

    def createLock(self) -> None:  # noqa: N802 - of the base class
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the filters of the base class: many tasks log a line or two and do little else."""
        task = logged_task(record)
        if task is not None:
            try:
                self.add(task, self._line_formatter.format(record))
            except Exception:  # noqa: BLE001 - as in the handlers of the standard library
                self.handleError(record)
        return True

    def add(self, task: Task, line: str) -> None:
        """Keep a line of this task's attempt."""
        key, line = _key(task), line[-LOG_LIMIT:]
        if key not in self._first and self._first.setdefault(key, line) is line:
            if len(self._first) > _MAX_ATTEMPTS:
                oldest = list(self._first)[0]  # noqa: RUF015 - another thread may change the dict
                self._first.pop(oldest, None)
                self._several.pop(oldest, None)
            return
        first, lines = self._first.get(key), self._several.get(key)
        if lines is None and first is not None:
            lines = self._several.setdefault(key, LastLines(first))
        if lines is not None:  # otherwise the lines were taken meanwhile
            lines.add(line)

    def take(self, task: Task) -> str | None:
        """Remove and return the lines of this task's attempt; None if there are none."""
        if not self._first:
            return None
        key = _key(task)
        first = self._first.pop(key, None)
        lines = self._several.pop(key, None) if self._several else None
        return first if lines is None else lines.text()

    def install(self) -> None:
        """Capture what the whole process logs. Warnings still go to stderr if the program configures no log."""
        root = logging.getLogger()
        if not root.handlers and logging.lastResort is not None:
            root.addHandler(logging.lastResort)
        root.addHandler(self)

    def remove(self) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        if root.handlers == [logging.lastResort] and logging.lastResort is not None:
            root.removeHandler(logging.lastResort)
