"""Bringing a file to the present schema, with any number of processes trying at once."""

import asyncio
import contextlib
import time
from importlib.resources import files
from pathlib import Path

import apsw

from qo.clock import boot_clock
from qo.engines.schemas import Schema
from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.file import APPLICATION_ID, VERSION, check_file, check_version, connect
from qo.engines.sqlite.trouble import storage_error
from qo.errors import StorageError

_PATIENCE = 30.0  # seconds
_PAUSE = 0.002  # seconds
_JOURNAL_LIMIT = 64 * 1024 * 1024  # bytes of write-ahead log kept after a burst


def prepare(db: apsw.Connection, path: Path) -> None:
    """Create or update the tables, then turn the write-ahead log on.

    In this order: a new file names its owner from its first byte on, and with the log it would stay blank until the
    first checkpoint.
    """
    try:
        _migrate(db, path)
        _turn_log_on(db)
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_LIMIT}")
    except apsw.Error as error:
        raise storage_error(path, error) from error


async def schema_of(url: str) -> Schema:
    return await asyncio.to_thread(_look, path_of(url))


def _look(path: Path) -> Schema:
    if not check_file(path):
        return Schema(0, VERSION)
    try:
        with contextlib.closing(connect(path, create=False)) as db:
            version = int(db.execute("PRAGMA user_version").get)
    except apsw.Error as error:
        raise storage_error(path, error) from error
    check_version(path, version)
    return Schema(version, VERSION)


def _migrate(db: apsw.Connection, path: Path) -> None:
    if db.execute("PRAGMA user_version").get == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version, application = db.execute("PRAGMA user_version").get, db.execute("PRAGMA application_id").get
        check_version(path, version)
        if application != APPLICATION_ID and db.execute("SELECT count(*) FROM sqlite_schema").get:
            raise StorageError(f"{path} is a SQLite database of another application; name another file")
        for step in range(version + 1, VERSION + 1):
            db.execute(files("qo.engines.sqlite.schema").joinpath(f"{step:04}.sql").read_text("utf-8"))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _turn_log_on(db: apsw.Connection) -> None:
    """It needs the file alone for a moment, and does not ask the busy handler when it cannot have it."""
    since = boot_clock()
    while True:
        try:
            if db.execute("PRAGMA journal_mode = wal").get == "wal":
                return
        except (apsw.BusyError, apsw.LockedError):
            if boot_clock() - since > _PATIENCE:
                raise
        time.sleep(_PAUSE)
