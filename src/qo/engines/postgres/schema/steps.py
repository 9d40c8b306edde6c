"""Bringing a database to the present schema, with any number of processes trying at once."""

from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors, sql

from qo.engines.postgres.address import PostgresAddress
from qo.engines.postgres.driver_errors import AGAIN, to_qo_error
from qo.engines.postgres.statements import fill
from qo.engines.postgres.version import ADDITIVE, VERSION
from qo.errors import StorageError
from qo.formats import Format, check_format, format_of

_LOCK = 0x716F  # "qo": with the schema's name, whose tables are being made
_MAX_TRIES = 10  # beside workers of an older build, which lock the same tables in another order

# Not to_regclass and its like: they answer from a cache that may not know what another process has just committed.
_SCHEMA = "SELECT FROM pg_namespace WHERE nspname = %s"
_TABLE = """
SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %s AND relname = 'schema_version'
"""


async def prepare(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    """Create or update the tables."""
    try:
        for left in range(_MAX_TRIES - 1, -1, -1):
            try:
                return await _migrate_alone(connection, address)
            except AGAIN:  # nothing was changed
                if not left:
                    raise
    except (errors.DuplicateTable, errors.DuplicateFunction) as error:
        raise StorageError(
            f"{address.shown}: the schema {address.schema} is another application's; name one with ?schema="
        ) from error
    except psycopg.Error as error:
        raise to_qo_error(address, error, doing=f", preparing the schema {address.schema}") from error


async def _migrate_alone(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    if await version_of(connection, address) >= VERSION:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_LOCK, address.schema))
        await _migrate(connection, address)


async def version_of(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> int:
    """0: there is no queue yet. One of a newer qo is refused: its tables may mean something else."""
    if not await _is_there(connection, _TABLE, address):
        return 0
    cursor = await connection.execute(fill("SELECT max(version) FROM {schema}.schema_version", address.schema))
    version = int(((await cursor.fetchone()) or (0,))[0] or 0)
    if version > VERSION:
        newest = fill("SELECT since, qo FROM {schema}.schema_version WHERE version = %s", address.schema)
        since, qo = await (await connection.execute(newest, (version,))).fetchone() or (0, "")
        place = f"{address.shown}: the schema {address.schema}"
        check_format(place, Format(format=version, since=since, qo=qo), VERSION)
    return version


async def _migrate(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    version = await version_of(connection, address)  # again: another process may have been first
    if version >= VERSION:
        return
    if version == 0:
        if not await _is_there(connection, _SCHEMA, address):  # whoever may not create schemas may be given one
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
        await connection.execute(
            fill("CREATE TABLE {schema}.schema_version (version integer PRIMARY KEY)", address.schema)
        )
    for step in range(version + 1, VERSION + 1):
        text = files("qo.engines.postgres.schema").joinpath(f"{step:04}.sql").read_text("utf-8")
        await connection.execute(fill(text, address.schema), prepare=False)
        insert = "INSERT INTO {schema}.schema_version (version) VALUES (%s)"
        await connection.execute(fill(insert, address.schema), (step,))
    found = format_of(VERSION, additive=ADDITIVE)
    record = "UPDATE {schema}.schema_version SET since = %s, qo = %s WHERE version = %s"
    await connection.execute(fill(record, address.schema), (found.since, found.qo, found.format))


async def _is_there(connection: psycopg.AsyncConnection[Any], query: str, address: PostgresAddress) -> bool:
    cursor = await connection.execute(query, (address.schema,))
    return await cursor.fetchone() is not None
