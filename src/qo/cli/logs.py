"""The log of a worker, monitor or server: coloured lines for a terminal, or one JSON object per line."""

import asyncio
import json
import logging
import os
import sys
from typing import Any

import click
import msgspec

from qo.cli.output import clean, clean_lines, escape_json
from qo.clock import iso

LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FLUSH_INTERVAL = 0.1  # seconds
_MAX_BUFFERED_LINES = 500
_COLOURS = {"completed": "green", "failed": "red", "pending": "yellow", "cancelled": "magenta"}


class TextFormatter(logging.Formatter):
    def __init__(self, *, colour: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        text = message if message.isprintable() else clean(message)
        if record.exc_info:
            text = f"{text}\n{clean_lines(self.formatException(record.exc_info))}"
        at = self.formatTime(record, self.datefmt)
        if not self._colour:
            return f"{at} {record.levelname.lower():<7} {text}"
        return f"{click.style(at, dim=True)} {click.style(text, fg=_colour(record))}"


def _colour(record: logging.LogRecord) -> str | None:
    if record.levelno >= logging.ERROR:
        return "red"
    known = _COLOURS.get(getattr(record, "status", ""))
    return known or ("yellow" if record.levelno >= logging.WARNING else None)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return escape_json(_encoded(line))


def _encoded(line: dict[str, Any]) -> str:
    """A server writes a line for each request, and json takes 20 µs for one where msgspec takes 2."""
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):  # lone surrogates, large numbers and odd keys
        return json.dumps(line, ensure_ascii=False, default=str)


def start_logging(level: str, *, as_json: bool) -> None:
    """Write the log of qo to stderr. Other loggers, such as those of the task handlers, are left alone."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(colour=coloured()))
    log = logging.getLogger("qo")
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def coloured() -> bool:
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and not os.environ.get("NO_COLOR"))


class BufferedLogHandler(logging.Handler):
    """Writes the lines of 0.1 s at once. A warning is written immediately, and the rest at exit.

    A write per line releases the GIL each time, and a busy server spent a third of its time reacquiring it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(self.format(record))
        if record.levelno >= logging.WARNING or len(self._lines) >= _MAX_BUFFERED_LINES:
            self.flush()

    def flush(self) -> None:
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()

    async def run(self) -> None:
        while True:
            self.flush()
            await asyncio.sleep(_FLUSH_INTERVAL)


def buffer_logs() -> BufferedLogHandler:
    """Replace the handlers that write each line; keep their format."""
    log = logging.getLogger("qo")
    buffered = BufferedLogHandler()
    if log.handlers:
        buffered.setFormatter(log.handlers[0].formatter)
    log.handlers[:] = [buffered]
    return buffered
