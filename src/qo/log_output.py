"""The log of a worker, monitor or server: coloured lines for a terminal, or one JSON object per line.

A line that a handler logs carries its task. The formatter finds the task in the context of the call, so this works in
threads and child processes, and for every library.
"""

import json
import logging
import os
import sys
from typing import Any

import click
import msgspec
from msgspec import Struct

from qo.clock import iso
from qo.line_handler import LineHandler
from qo.model import Task
from qo.running_task import running
from qo.safe_text import clean, clean_lines, escape_json

LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"completed": "green", "failed": "red", "pending": "yellow", "cancelled": "magenta"}


class LogSettings(Struct, frozen=True, kw_only=True):
    """How a worker process logs. Its child processes log in the same way."""

    level: str
    as_json: bool
    colour: bool


class _Configured:
    def __init__(self) -> None:
        self.settings: LogSettings | None = None


_configured = _Configured()


def logged_task(record: logging.LogRecord) -> Task | None:
    """The task whose handler logged this record. Lines of qo name their tasks themselves."""
    task = running.get(None)
    return None if task is None or is_of_qo(record) else task


def is_of_qo(record: logging.LogRecord) -> bool:
    """Whether qo logged this record, and not a handler."""
    name = record.name  # a record made from a dict may have none
    return bool(name) and (name[:3] == "qo." or name == "qo")


def is_routine(record: logging.LogRecord) -> bool:
    """Whether the line may be written a few milliseconds later. What a handler logged before a crash must be there."""
    return record.levelno < logging.WARNING and is_of_qo(record)


class TextFormatter(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._colour = colour
        self._second = -1, ""  # the second of the last line, and its text

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        text = message if message.isprintable() else clean(message)
        if (task := logged_task(record)) is not None:
            text = f"{task.type} {task.id}: {text}"
        if record.exc_info:
            text = f"{text}\n{clean_lines(self.formatException(record.exc_info))}"
        second, at = self._second
        if second != int(record.created):
            at = self.formatTime(record, self.datefmt)
            self._second = int(record.created), at
        if not self._colour:
            return f"{at} {record.levelname.lower():<7} {text}"
        return f"{click.style(at, dim=True)} {click.style(text, fg=_colour(record))}"


def _colour(record: logging.LogRecord) -> str | None:
    if record.levelno >= logging.ERROR:
        return "red"
    known = _COLOURS.get(getattr(record, "status", ""))
    return known or ("yellow" if record.levelno >= logging.WARNING else None)


class JsonFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__()
        self._second = -1, ""  # the second of the last line, and its text

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": self._instant(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (task := logged_task(record)) is not None:
            line |= {"task_id": task.id, "type": task.type, "queue": task.queue, "attempt": task.attempt}
            line |= {"worker_id": task.worker_id, "trace_id": task.trace_id or task.id}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return escape_json(_encoded(line))

    def _instant(self, created: float) -> str:
        """As `iso`, in a third of the time if the last line is of the same second."""
        whole = int(created)
        second, text = self._second
        if second != whole:
            text = iso(whole)[: -len("000Z")]
            self._second = whole, text
        return f"{text}{int(1000 * (created - whole)):03d}Z"


def _encoded(line: dict[str, Any]) -> str:
    """A server writes a line for each request, and json takes 20 µs for one where msgspec takes 2."""
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):  # lone surrogates, large numbers and odd keys
        return json.dumps(line, ensure_ascii=False, default=str)


def start_logging(level: str, *, as_json: bool, root: bool = False) -> None:
    """Write the log of qo to stderr, and with `root` the log of the whole process."""
    apply(LogSettings(level=level, as_json=as_json, colour=coloured()), root=root)


def apply(settings: LogSettings, *, root: bool) -> None:
    handler = LineHandler(sys.stderr, is_routine)
    handler.setFormatter(JsonFormatter() if settings.as_json else TextFormatter(colour=settings.colour))
    log = logging.getLogger("qo")
    for old in log.handlers:
        if isinstance(old, LineHandler):
            old.close()
    log.handlers[:] = [handler]
    log.setLevel(settings.level.upper())
    log.propagate = False
    if root:
        everything = logging.getLogger()
        everything.handlers[:] = [handler]
        everything.setLevel(settings.level.upper())
        _configured.settings = settings


def settings_of_process() -> LogSettings | None:
    """The settings with which this process logs everything; None if the program configures its log itself."""
    return _configured.settings


def coloured() -> bool:
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
