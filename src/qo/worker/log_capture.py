"""The last log lines of each attempt, which are stored with its outcome."""

import logging
from collections import deque

from qo.clock import iso
from qo.log_output import is_of_qo
from qo.model import plural
from qo.model.text import LOG_LIMIT
from qo.running_task import RunningAttempt, running_attempt

MAX_LINES = 100
_MAX_ATTEMPTS = 1000  # of which lines are kept; those of lost and abandoned attempts are never taken
_MAX_SOURCES = 1000  # of pairs of a logger and a level


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
        self._instant = 0.0, 0.0, ""  # the last millisecond formatted: its begin, its end and its text
        self._sources: dict[tuple[str, str], str] = {}  # level and logger as text, by logger and level; empty: of qo

    def format(self, record: logging.LogRecord) -> str:
        """The line, or an empty text if qo itself logged it.

        Quick tasks log several lines in a millisecond, so its text is kept, and so is that of each logger.
        """
        source = self._sources.get((record.name, record.levelname))
        if source is None:
            source = self._source(record)
        if not source:
            return ""
        begin, end, at = self._instant
        if not begin <= record.created < end:
            begin = int(record.created * 1000) / 1000
            _, _, at = self._instant = begin, begin + 0.001, iso(record.created)
        text = at + source + record.getMessage()
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text

    def _source(self, record: logging.LogRecord) -> str:
        if len(self._sources) > _MAX_SOURCES:  # a program may make up names
            self._sources.clear()
        source = "" if is_of_qo(record) else f" {record.levelname.lower()} {record.name}: "
        self._sources[record.name, record.levelname] = source
        return source


class LogCapture(logging.Handler):
    """Keeps the lines that handlers log in this process. It has no lock: a worker may stop a thread anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self._format = LineFormatter().format
        # By attempt. Most attempts log one line, and strings, unlike containers, are no work for the garbage collector.
        self._first: dict[RunningAttempt, str] = {}
        self._several: dict[RunningAttempt, LastLines] = {}  # of attempts with more than one line

    def createLock(self) -> None:  # noqa: N802 - of the base class
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Without the filters of the base class: many tasks log a line or two and do little else."""
        attempt = running_attempt.get(None)
        if attempt is not None:
            try:
                if line := self._format(record):
                    self.add(attempt, line)
            except Exception:  # noqa: BLE001 - as in the handlers of the standard library
                self.handleError(record)
        return True

    def add(self, attempt: RunningAttempt, line: str) -> None:
        """Keep a line of this attempt."""
        if len(line) > LOG_LIMIT:
            line = line[-LOG_LIMIT:]
        if self._first.setdefault(attempt, line) is line:
            if len(self._first) > _MAX_ATTEMPTS:
                oldest = list(self._first)[0]  # noqa: RUF015 - another thread may change the dict
                self._first.pop(oldest, None)
                self._several.pop(oldest, None)
            return
        first, lines = self._first.get(attempt), self._several.get(attempt)
        if lines is None and first is not None:
            lines = self._several.setdefault(attempt, LastLines(first))
        if lines is not None:  # otherwise the lines were taken meanwhile
            lines.add(line)

    def take(self, attempt: RunningAttempt) -> str | None:
        """Remove and return the lines of this attempt; None if there are none."""
        first = self._first.pop(attempt, None)
        lines = self._several.pop(attempt, None) if self._several else None
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
