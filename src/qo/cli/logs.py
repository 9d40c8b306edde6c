"""The log of a worker or monitor: one coloured line an event for people, one JSON object a line for machines."""

import json
import logging
import os
import sys
from typing import Any

import click

from qo.cli.output import clean, clean_lines, escape_json
from qo.clock import iso

LEVELS = ("debug", "info", "warning", "error")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"completed": "green", "failed": "red", "pending": "yellow", "cancelled": "magenta"}


class PeopleFormatter(logging.Formatter):
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
        return escape_json(json.dumps(line, ensure_ascii=False, default=str))


def start_logging(level: str, *, as_json: bool) -> None:
    """Send what qo logs to stderr. The handlers' own loggers are their program's business."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PeopleFormatter(colour=coloured()))
    log = logging.getLogger("qo")
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False


def coloured() -> bool:
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and not os.environ.get("NO_COLOR"))
