"""The last log lines of each attempt, which are stored with its outcome."""

import logging
from collections import deque

from qo.clock import iso
from qo.log_output import logged_task
from qo.model import Task
from qo.model.text import LOG_LIMIT

MAX_LINES = 100
_SECONDS_LENGTH = len("2026-11-17T22:31:34")
_MAX_ATTEMPTS = 1000  # of which lines are kept; those of lost and abandoned attempts are never taken


class LastLines:
    """The last lines of one attempt, and how many earlier ones were dropped."""

    __slots__ = ("_dropped", "_lines", "_size")

    def __init__(self, first: str) -> None:
        self._lines = deque((first[-LOG_LIMIT:],))
        self._size, self._dropped = len(self._lines[0]), 0

    def add(self, text: str) -> None:
        text = text[-LOG_LIMIT:]
        self._lines.append(text)
        self._size += len(text) + 1
        while len(self._lines) > MAX_LINES or self._size > LOG_LIMIT:
            self._size -= len(self._lines.popleft()) + 1
            self._dropped += 1

    def text(self) -> str:
        if len(self._lines) == 1 and not self._dropped:
            return self._lines[0]
        dropped = [f"({self._dropped} earlier lines were not kept)"] if self._dropped else []
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


class LogCapture(logging.Handler):
    """Keeps the lines that handlers log in this process. It has no lock: a worker may stop a thread anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._line_formatter = LineFormatter()
        self._attempts: dict[tuple[str, int], LastLines] = {}

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
        key = task.id, task.attempt
        lines = self._attempts.get(key)
        if lines is None:
            first = LastLines(line)
            lines = self._attempts.setdefault(key, first)
            if len(self._attempts) > _MAX_ATTEMPTS:
                self._attempts.pop(list(self._attempts)[0], None)  # noqa: RUF015 - another thread may change the dict
            if lines is first:
                return
        lines.add(line)

    def take(self, task: Task) -> str | None:
        """Remove and return the lines of this task's attempt; None if there are none."""
        if not self._attempts:
            return None
        lines = self._attempts.pop((task.id, task.attempt), None)
        return None if lines is None else lines.text()

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
