"""Creates the schema or migrates it to the current version. Any number of processes may try concurrently."""

from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors, sql

from qo.engines.postgres.address import PostgresAddress
from qo.engines.postgres.driver_errors import TRANSIENT, to_qo_error
from qo.engines.postgres.statements import ADDITIVE, VERSION, fill
from qo.errors import StorageError
from qo.formats import Format, check_format, format_of

_MIGRATION_LOCK = 0x716F  # "qo", combined with a hash of the schema's name
_MAX_ATTEMPTS = 10  # workers of older builds lock the same tables in another order, which can deadlock

# Not to_regclass(): it reads a cache that may miss what another process has just committed.
_SCHEMA = "SELECT FROM pg_namespace WHERE nspname = %s"
_TABLE = """
SELECT FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = %s AND relname = 'schema_version'
"""


async def prepare(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    """Create or migrate the tables. Raises StorageError."""
    try:
        for left in range(_MAX_ATTEMPTS - 1, -1, -1):
            try:
                return await _migrate_under_lock(connection, address)
            except TRANSIENT:  # the transaction was rolled back
                if not left:
                    raise
    except (errors.DuplicateTable, errors.DuplicateFunction) as error:
        raise StorageError(
            f"{address.shown_url}: the schema {address.schema} belongs to another application; add ?schema="
        ) from error
    except psycopg.Error as error:
        raise to_qo_error(address, error, doing=f", preparing the schema {address.schema}") from error


async def _migrate_under_lock(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    if await version_of(connection, address) >= VERSION:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_MIGRATION_LOCK, address.schema))
        await _migrate(connection, address)


async def version_of(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> int:
    """The version of the stored schema, or 0 without one. Raises NewerFormat if this build must not use it."""
    if not await _exists(connection, _TABLE, address):
        return 0
    cursor = await connection.execute(fill("SELECT max(version) FROM {schema}.schema_version", address.schema))
    version = int(((await cursor.fetchone()) or (0,))[0] or 0)
    if version > VERSION:
        newest = fill("SELECT since, qo FROM {schema}.schema_version WHERE version = %s", address.schema)
        since, qo = await (await connection.execute(newest, (version,))).fetchone() or (0, "")
        place = f"{address.shown_url}: the schema {address.schema}"
        check_format(place, Format(format=version, since=since, qo=qo), VERSION)
    return version


async def _migrate(connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
    version = await version_of(
        connection, address
    )  # read again: another process may have migrated before this one got the lock
    if version >= VERSION:
        return
    if version == 0:
        if not await _exists(
            connection, _SCHEMA, address
        ):  # a user without the right to create schemas may have been given one
            await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
        await connection.execute(
            fill("CREATE TABLE {schema}.schema_version (version integer PRIMARY KEY)", address.schema)
        )
    for step in range(version + 1, VERSION + 1):
        text = files("qo.engines.postgres").joinpath("schema", f"{step:04}.sql").read_text("utf-8")
        await connection.execute(fill(text, address.schema), prepare=False)
        insert = "INSERT INTO {schema}.schema_version (version) VALUES (%s)"
        await connection.execute(fill(insert, address.schema), (step,))
    found = format_of(VERSION, additive=ADDITIVE)
    record = "UPDATE {schema}.schema_version SET since = %s, qo = %s WHERE version = %s"
    await connection.execute(fill(record, address.schema), (found.since, found.qo, found.format))


async def _exists(connection: psycopg.AsyncConnection[Any], query: str, address: PostgresAddress) -> bool:
    cursor = await connection.execute(query, (address.schema,))
    return await cursor.fetchone() is not None
