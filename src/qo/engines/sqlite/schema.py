"""How far the tables of a file are, told without changing them."""

import asyncio
import contextlib
from pathlib import Path

import apsw

from qo.engines.schemas import Schema
from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.file import check_file, connect
from qo.sqlite_tables.header import VERSION, check_version
from qo.sqlite_tables.trouble import storage_error


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
