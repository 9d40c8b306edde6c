"""Examines a database for `qo doctor`. Changes nothing."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg

from qo.clock import system_clock
from qo.engines.postgres.address import PostgresAddress, address_of
from qo.engines.postgres.driver_errors import to_qo_error
from qo.engines.postgres.migrations import version_of
from qo.engines.postgres.statements import VERSION, statement
from qo.errors import StorageError
from qo.model import plural
from qo.reports import Finding

_MIN_VERSION = 120_000  # Postgres 12
_NOTABLE_SKEW, _MAX_SKEW = 1.0, 30.0


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    try:
        connection = await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True)
    except psycopg.Error as error:
        return [Finding("server", False, str(to_qo_error(address, error)))]
    findings: list[Finding] = []
    try:
        async for finding in _examine(_Database(connection, address)):
            findings.append(finding)  # noqa: PERF401 - findings before an error are kept
    except psycopg.Error as error:
        findings.append(Finding("database", False, str(to_qo_error(address, error))))
    finally:
        await connection.close()
    return findings


class _Database:
    def __init__(self, connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
        self.connection, self.address = connection, address

    async def value(self, name: str) -> Any:
        """The only value that a statement returns."""
        cursor = await self.connection.execute(statement(name, self.address.schema), {"schema": self.address.schema})
        (value,) = await cursor.fetchone() or (None,)
        return value


async def _examine(database: _Database) -> AsyncIterator[Finding]:
    yield Finding("server", True, f"{database.address.shown_url} responds")
    yield _version(database.connection.info.server_version)
    yield await _clock(database)
    yield await _durability(database)
    yield await _role(database)
    try:
        version = await version_of(database.connection, database.address)
    except StorageError as error:
        yield Finding("schema", False, str(error))
        return
    if not version:
        yield await _missing_schema(database)
        return
    yield _schema(version)
    yield await _privileges(database)
    yield await _vacuum(database)
    yield await _counts(database)
    yield await _indexes(database)


def _version(number: int) -> Finding:
    text = f"Postgres {number // 10_000}.{number % 10_000}"
    if number < _MIN_VERSION:
        return Finding("version", False, f"{text} is too old; qo needs 12 or newer")
    return Finding("version", True, text)


async def _clock(database: _Database) -> Finding:
    """Compare the clocks. This machine's is read before and after, so that the round trip is not counted as skew."""
    before = system_clock()
    server_time = float(await database.value("server_time"))
    skew = max(before - server_time, server_time - system_clock(), 0.0)
    text = f"the server's clock differs from this machine's by {skew:.1f} s"
    if skew > _MAX_SKEW:
        return Finding("clock", False, f"{text}; synchronize both with NTP, or delays and leases will be wrong")
    return Finding("clock", True if skew <= _NOTABLE_SKEW else None, text)


async def _durability(database: _Database) -> Finding:
    if await database.value("doctor_fsync") == "off":
        return Finding("durability", False, "fsync is off: a crash of the machine can destroy the database; turn it on")
    if await database.value("doctor_full_pages") == "off":
        return Finding(
            "durability", None, "full_page_writes is off: safe only on a file system that writes whole pages atomically"
        )
    if await database.value("doctor_commit") == "off":
        return Finding(
            "durability", None, "synchronous_commit is off: qo turns it on for its own commits, others may be lost"
        )
    return Finding("durability", True, "every commit is flushed")


async def _role(database: _Database) -> Finding:
    if await database.value("doctor_standby"):
        return Finding("role", False, "this server is a read-only standby; connect to the primary")
    return Finding("role", True, "this server accepts writes")


async def _missing_schema(database: _Database) -> Finding:
    if await database.value("doctor_may_create"):
        return Finding(
            "schema", None, f"there is no queue in {database.address.schema} yet; opening a queue creates it"
        )
    return Finding(
        "schema", False, f"this user may not create the schema {database.address.schema}; create it, or grant CREATE"
    )


def _schema(version: int) -> Finding:
    if version < VERSION:
        return Finding("schema", None, f"version {version}; it is upgraded to {VERSION} when qo next opens the queue")
    return Finding("schema", True, f"version {version}")


async def _privileges(database: _Database) -> Finding:
    missing = await database.value("doctor_privileges")
    if missing:
        return Finding(
            "privileges", False, f"this user lacks rights; GRANT SELECT, INSERT, UPDATE, DELETE ON {missing}"
        )
    return Finding("privileges", True, "this user may read and write the queue's tables")


async def _vacuum(database: _Database) -> Finding:
    if await database.value("doctor_vacuum"):
        return Finding("vacuum", True, "autovacuum is on for the tables")
    return Finding(
        "vacuum", None, "autovacuum is off for these tables: claims will slow down; turn it on, or run VACUUM often"
    )


async def _counts(database: _Database) -> Finding:
    wrong = await database.value("doctor_wrong_counts")
    if wrong:
        return Finding(
            "counts", False, f"{plural(wrong, 'wrong count')} of tasks; stop all workers and restore a backup"
        )
    return Finding("counts", True, "the counts agree with the tasks")


async def _indexes(database: _Database) -> Finding:
    """A task that is missing from its index would never be claimed or expired."""
    wrong = await database.value("doctor_unindexed")
    if wrong:
        return Finding("indexes", False, f"{plural(wrong)} missing from the index, so never run; restore a backup")
    return Finding("indexes", True, "every task is in its index")
