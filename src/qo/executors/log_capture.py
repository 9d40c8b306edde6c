"""The last log lines of each attempt, which are stored with its outcome."""

import logging
import threading

from qo.clock import iso
from qo.log_output import is_of_qo
from qo.model.text import LOG_LIMIT, MAX_NOTICE_LENGTH, dropped_notice, storable_log
from qo.running_task import running_attempt

MAX_LINES = 100
LONG_LINE = (
    LOG_LIMIT // MAX_LINES - 1
)  # characters; MAX_LINES lines of this length fit into LOG_LIMIT if they are ASCII
_MAX_SOURCES = 1000  # of pairs of a logger and a level


def add_line(lines: list[str], line: str) -> int:
    """Add a line to the last lines of an attempt, and return how many earlier lines were dropped.

    Several threads may call it for one attempt. Each step on the list is atomic, so none of them loses the line.
    """
    if len(line) <= LONG_LINE:
        lines.append(line)
        dropped = 0
    else:
        lines.append(line[-LOG_LIMIT:])
        dropped = _drop_excess(lines, LOG_LIMIT)
    if len(lines) > MAX_LINES:
        lines.pop(0)
        dropped += 1
    return dropped


def log_text(lines: list[str], dropped: int) -> str | None:
    """The last lines as one text, after the number of lines that were dropped. None if there are no lines."""
    if len(lines) == 1 and not dropped:
        return lines[0]
    dropped += _drop_excess(lines, LOG_LIMIT)
    if not dropped:
        return "\n".join(lines) or None
    room = LOG_LIMIT - MAX_NOTICE_LENGTH  # a store keeps the end of a text that is too long, so the notice must fit
    dropped += _drop_excess(lines, room)
    return dropped_notice(dropped) + (storable_log("\n".join(lines), room) or "")


def _drop_excess(lines: list[str], limit: int) -> int:
    """Drop the oldest lines until the rest fits into `limit` bytes, or is one line. Returns their number."""
    size, dropped = sum(map(_size, lines)) + len(lines) - 1, 0
    while size > limit and len(lines) > 1:
        size -= _size(lines.pop(0)) + 1
        dropped += 1
    return dropped


def _size(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode(errors="replace"))


class LinePrefixes:
    """The prefix of a line: time, level and logger, as in `2026-11-17T22:31:34.123Z info shop.mail: `.

    Quick tasks log several lines in a millisecond, so the last prefix and its parts are cached.
    """

    def __init__(self) -> None:
        # The millisecond of the last prefix, from its start to its end, the logger, the level, and the prefix.
        self.last = 0.0, 0.0, "", "", ""
        self._second = -1, ""  # the last second formatted, and its text up to the milliseconds
        self._sources: dict[tuple[str, str], str] = {}  # level and logger as text, by logger and level; empty: of qo

    def of(self, record: logging.LogRecord) -> str:
        """The prefix of the line of this record. Empty if qo itself logged it."""
        source = self._sources.get((record.name, record.levelname))
        if source is None:
            source = self._source(record)
        whole = int(record.created)
        second, text = self._second
        if second != whole:
            text = iso(whole)[: -len("000Z")]
            self._second = whole, text
        millisecond = int(1000 * (record.created - whole))
        prefix = source and f"{text}{millisecond:03d}Z{source}"
        begin = whole + millisecond / 1000
        self.last = begin, begin + 0.001, record.name, record.levelname, prefix
        return prefix

    def _source(self, record: logging.LogRecord) -> str:
        if len(self._sources) > _MAX_SOURCES:  # a program may generate names
            self._sources.clear()
        source = "" if is_of_qo(record) else f" {record.levelname.lower()} {record.name}: "
        self._sources[record.name, record.levelname] = source
        return source


class LogCapture(logging.Handler):
    """Adds the lines that handlers log in this process to their attempts.

    It has no lock: a worker may stop a thread anywhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self._prefixes = LinePrefixes()
        self._format_exception = logging.Formatter().formatException
        self._users, self._guard = 0, threading.Lock()

    def createLock(self) -> None:  # noqa: N802 - of the base class
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Skips the filters of the base class, because many tasks log a line or two and do little else."""
        attempt = running_attempt.get(None)
        if attempt is not None:
            try:
                begin, end, name, level, prefix = self._prefixes.last
                if name is not record.name or level is not record.levelname or not begin <= record.created < end:
                    prefix = self._prefixes.of(record)
                if prefix:
                    line = prefix + record.getMessage()
                    if record.exc_info:
                        line = f"{line}\n{self._format_exception(record.exc_info)}"
                    attempt.add_log_line(line)
            except Exception:  # noqa: BLE001 - as in the handlers of the standard library
                self.handleError(record)
        return True

    def install(self) -> None:
        """Capture what the whole process logs. Warnings still go to stderr if the program configures no log."""
        root = logging.getLogger()
        with self._guard:
            self._users += 1
            if self in root.handlers:
                return
            if not root.handlers and logging.lastResort is not None:
                root.addHandler(logging.lastResort)
            root.addHandler(self)

    def remove(self) -> None:
        """Undo one call of `install`."""
        root = logging.getLogger()
        with self._guard:
            self._users -= 1
            if self._users:
                return
            root.removeHandler(self)
            if root.handlers == [logging.lastResort] and logging.lastResort is not None:
                root.removeHandler(logging.lastResort)


CAPTURE = LogCapture()  # all workers of a process share it, so that an attempt gets each line once
