"""The SQL statements from `statements.sql`, and inserts of many rows in few steps."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

import apsw

_COMMENT, _SPACE = re.compile(r"--.*"), re.compile(r"\s+")
# The bytes of a task with its events, roughly.
_STORED_SIZE = (
    "500 + length(payload) + coalesce(length(result), 0) + coalesce(length(CAST(error AS BLOB)), 0)"
    " + (SELECT coalesce(sum(100 + coalesce(length(CAST(events.error AS BLOB)), 0)"
    " + coalesce(length(CAST(events.log AS BLOB)), 0)), 0) FROM events WHERE events.n = tasks.n)"
)
_ROW = re.compile(r"VALUES (\([^()]*\))")
_MAX_ROWS = 128  # per statement; more gains nothing


def _load() -> dict[str, str]:
    text = files("qo.sqlite_tables").joinpath("statements.sql").read_text("utf-8")
    blocks = (block.partition("\n") for block in text.split("-- name: ")[1:])
    # Without comments, because the driver hashes the whole text to find the prepared statement.
    texts = {name.strip(): _SPACE.sub(" ", _COMMENT.sub("", body)).strip() for name, _, body in blocks}
    return {name: text.replace("{stored_size}", _STORED_SIZE) for name, text in texts.items()}


SQL = _load()


@cache
def _widened(name: str, size: int) -> str:
    return _ROW.sub(lambda row: "VALUES " + ", ".join([row[1]] * size), SQL[name])


def write_rows(db: apsw.Connection, name: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """Run a VALUES statement on many rows in few steps, and return the number of rows written."""
    if len(rows) == 1:  # a single task, submitted from plain code
        db.execute(SQL[name], rows[0])
        return db.changes()
    written = 0
    for part in _parts(rows):
        db.execute(_widened(name, len(part)), tuple(chain.from_iterable(part)))
        written += db.changes()
    return written


def _parts(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Split into powers of two, so that the statement cache holds all statements."""
    start, size = 0, _MAX_ROWS
    while start < len(rows):
        while size > len(rows) - start:
            size //= 2
        yield rows[start : start + size]
        start += size
