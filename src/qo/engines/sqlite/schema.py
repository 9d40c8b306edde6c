"""Reads the schema version of a file without changing it."""

import asyncio
import contextlib
from pathlib import Path

import apsw

from qo.engines.sqlite.address import path_of
from qo.engines.sqlite.file import check_file, connect
from qo.formats import Schema
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import VERSION
from qo.sqlite_tables.schema import check_version


async def schema_of(url: str) -> Schema:
    return await asyncio.to_thread(_read_schema, path_of(url))


def _read_schema(path: Path) -> Schema:
    if not check_file(path):
        return Schema(0, VERSION)
    try:
        with contextlib.closing(connect(path, create=False)) as db:
            return Schema(check_version(db, path), VERSION)
    except apsw.Error as error:
        raise to_qo_error(path, error) from error
