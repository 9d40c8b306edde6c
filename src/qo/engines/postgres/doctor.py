"""Examining a database for `qo doctor`. Nothing in it is changed."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg

from qo.clock import system_clock
from qo.engines.postgres.address import PostgresAddress, address_of
from qo.engines.postgres.driver_errors import to_qo_error
from qo.engines.postgres.schema import VERSION, version_of
from qo.engines.postgres.statements import statement
from qo.errors import StorageError
from qo.findings import Finding

_OLDEST = 120_000  # Postgres 12
_SKEW, _FAR = 1.0, 30.0  # seconds between the clocks: worth a word, and too much


async def examine(url: str) -> list[Finding]:
    address = address_of(url)
    try:
        connection = await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True)
    except psycopg.Error as error:
        return [Finding("server", False, str(to_qo_error(address, error)))]
    findings: list[Finding] = []
    try:
        async for finding in _examine(_Desk(connection, address)):
            findings.append(finding)  # noqa: PERF401 - what was found before an error counts
    except psycopg.Error as error:
        findings.append(Finding("database", False, str(to_qo_error(address, error))))
    finally:
        await connection.close()
    return findings


class _Desk:
    """A connection that is asked for one value at a time."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], address: PostgresAddress) -> None:
        self.connection, self.address = connection, address

    async def ask(self, name: str) -> Any:
        cursor = await self.connection.execute(statement(name, self.address.schema), {"schema": self.address.schema})
        (value,) = await cursor.fetchone() or (None,)
        return value


async def _examine(desk: _Desk) -> AsyncIterator[Finding]:
    yield Finding("server", True, f"{desk.address.shown} answers")
    yield _version(desk.connection.info.server_version)
    yield await _clock(desk)
    yield await _flushing(desk)
    yield await _standby(desk)
    try:
        version = await version_of(desk.connection, desk.address)
    except StorageError as error:
        yield Finding("schema", False, str(error))
        return
    if not version:
        yield await _creating(desk)
        return
    yield _schema(version)
    yield await _privileges(desk)
    yield await _vacuum(desk)
    yield await _tally(desk)
    yield await _turns(desk)


def _version(number: int) -> Finding:
    text = f"Postgres {number // 10_000}.{number % 10_000}"
    if number < _OLDEST:
        return Finding("version", False, f"{text} is too old; qo needs 12 or newer")
    return Finding("version", True, text)


async def _clock(desk: _Desk) -> Finding:
    """Between two looks at our own clock, so that the way there does not count."""
    before = system_clock()
    theirs = float(await desk.ask("ask_clock"))
    skew = max(before - theirs, theirs - system_clock(), 0.0)
    text = f"the server's clock and ours are {skew:.1f} s apart"
    if skew > _FAR:
        return Finding("clock", False, f"{text}; set them by NTP, or delays and leases will not be what you expect")
    return Finding("clock", True if skew <= _SKEW else None, text)


async def _flushing(desk: _Desk) -> Finding:
    if await desk.ask("ask_fsync") == "off":
        return Finding("durability", False, "fsync is off: a crash of the machine loses everything; turn it on")
    if await desk.ask("ask_full_pages") == "off":
        return Finding(
            "durability", None, "full_page_writes is off: safe only on a file system that never tears a page"
        )
    if await desk.ask("ask_commit") == "off":
        return Finding(
            "durability", None, "synchronous_commit is off: qo turns it on for itself, your own commits may be lost"
        )
    return Finding("durability", True, "every commit is flushed")


async def _standby(desk: _Desk) -> Finding:
    if await desk.ask("ask_standby"):
        return Finding("role", False, "this server is a read-only standby; connect to the primary")
    return Finding("role", True, "this server takes writes")


async def _creating(desk: _Desk) -> Finding:
    if await desk.ask("ask_creating"):
        return Finding(
            "schema", None, f"there is no queue in {desk.address.schema} yet; it is made when one is first opened"
        )
    return Finding(
        "schema", False, f"this user may not create the schema {desk.address.schema}; create it, or grant CREATE"
    )


def _schema(version: int) -> Finding:
    if version < VERSION:
        return Finding("schema", None, f"version {version}; it becomes {VERSION} when a queue next opens it")
    return Finding("schema", True, f"version {version}")


async def _privileges(desk: _Desk) -> Finding:
    missing = await desk.ask("ask_privileges")
    if missing:
        return Finding(
            "privileges", False, f"this user lacks rights; GRANT SELECT, INSERT, UPDATE, DELETE ON {missing}"
        )
    return Finding("privileges", True, "this user may read and write the queue's tables")


async def _vacuum(desk: _Desk) -> Finding:
    if await desk.ask("ask_vacuum"):
        return Finding("vacuum", True, "autovacuum looks after the tables")
    return Finding("vacuum", None, "autovacuum is off here: claims will slow down; turn it on, or VACUUM often")


async def _tally(desk: _Desk) -> Finding:
    wrong = await desk.ask("ask_tally")
    if wrong:
        return Finding("counts", False, f"{wrong} counts differ from the tasks; stop all workers and restore a copy")
    return Finding("counts", True, "the counts agree with the tasks")


async def _turns(desk: _Desk) -> Finding:
    """A task outside its list would never be claimed or expired."""
    wrong = await desk.ask("ask_turns")
    if wrong:
        return Finding("lists", False, f"{wrong} tasks are in no list and would never run; restore a copy")
    return Finding("lists", True, "every task is in its list")
