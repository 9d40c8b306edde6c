"""The Postgres engine: the port on one side, a line to the server and a watch on the other."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import psycopg

from qo.clock import Clock
from qo.engine import Engine
from qo.engines.hand_backs import HandBacks
from qo.engines.postgres.address import PostgresAddress, address_of
from qo.engines.postgres.arrays import teach
from qo.engines.postgres.batches import wanted
from qo.engines.postgres.driver_errors import to_qo_error
from qo.engines.postgres.pool import PostgresPool, Rows
from qo.engines.postgres.reader import PostgresReader
from qo.engines.postgres.schema import VERSION, prepare, version_of
from qo.engines.postgres.statements import statement
from qo.engines.postgres.table import PostgresTable, answers
from qo.engines.postgres.watch import PostgresWatch
from qo.engines.retry import retry_opening
from qo.engines.schemas import Schema
from qo.errors import StorageError
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    page_start,
)

Wanted = tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]


class _Rooms:
    """What an open engine has."""

    def __init__(self, line: PostgresPool, clock: Clock | None) -> None:
        self.line = line
        self.table = PostgresTable(line, clock)
        self.hand_backs = HandBacks(self.table.apply)
        self.reading = PostgresReader(line, self.table)
        self.watch = PostgresWatch(line)


class PostgresEngine(Engine):
    def __init__(self, address: PostgresAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock  # None: the server's own clock rules
        self._rooms: _Rooms | None = None
        self._opening = asyncio.Lock()
        self._looks: dict[Wanted, tuple[int, float | None]] = {}

    async def open(self) -> None:
        async with self._opening:
            if self._rooms is not None and self._rooms.line.pid == os.getpid():
                return
            line = PostgresPool(self._address)
            connection = await retry_opening(line.connect)
            try:
                await prepare(connection, self._address)
            finally:
                await connection.close()
            self._rooms = _Rooms(line, self._clock)

    async def close(self) -> None:
        rooms, self._rooms = self._rooms, None
        if rooms is None or rooms.line.pid != os.getpid():  # in a forked child there is nothing to let go of
            return
        rooms.line.is_open = False
        await rooms.hand_backs.finish()
        await rooms.watch.close()
        await rooms.line.close()

    def _at_work(self) -> _Rooms:
        rooms = self._rooms
        if rooms is None:
            raise StorageError(f"{self._address.shown} is not open; call open() first")
        if rooms.line.pid != os.getpid():
            raise StorageError(f"{self._address.shown} was opened before a fork; open an engine of its own here")
        return rooms

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return await self._at_work().table.add(tasks)

    async def add_on(
        self, connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], tasks: Sequence[NewTask]
    ) -> list[Added]:
        """Add on the caller's own connection, in its transaction: the tasks exist if and only if the caller commits."""
        check_distinct(task.id for task in tasks)
        if not tasks:
            return []
        values = await self._at_work().table.submission(tasks)
        try:
            rows = await _run_on(connection, statement("add", self._address.schema), values)
            is_keyed = any(task.idempotency_key is not None for task in tasks)
            last = await _run_on(connection, statement("last", self._address.schema), values) if is_keyed else []
            return answers(tasks, rows, last)
        except psycopg.Error as error:
            raise to_qo_error(self._address, error, doing=", on the connection you gave") from error

    async def claim(self, request: ClaimRequest) -> list[Task]:
        rooms = self._at_work()
        notifications = rooms.watch.notifications
        tasks = await rooms.hand_backs.claim(rooms.table.claim(request))
        if not tasks:
            self._looks[_wanted(request)] = (notifications, rooms.table.due_in)
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self._at_work().table.apply(changes)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._at_work().table.delete(ids)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self._at_work().table.write_note(name, data, expected)

    async def drop_note(self, name: str) -> None:
        await self._at_work().table.drop_note(name)

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self._at_work().reading.get(ids)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self._at_work().reading.find(where, limit, page_start(after, created_before))

    async def count(self) -> Counts:
        return await self._at_work().reading.count()

    async def history(self, task_id: str) -> list[Event]:
        return await self._at_work().reading.history(task_id)

    async def now(self) -> float:
        return await self._at_work().reading.now()

    async def read_note(self, name: str) -> Note | None:
        return await self._at_work().reading.read_note(name)

    async def notes(self, prefix: str) -> list[Note]:
        return await self._at_work().reading.notes(prefix)

    async def repair(self) -> int:
        """Remove lanes without tasks. Nothing was broken, so no repair is reported."""
        await self._at_work().table.lanes.remove_empty()
        return 0

    # --- waiting

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        """A claim that found nothing was a look too: after it, waiting asks the server nothing."""
        rooms = self._at_work()
        look = self._looks.pop(_wanted(request), None) or await self._look(rooms, request)
        if look is not None:
            await rooms.watch.sleep(look[0], timeout, look[1])

    async def _look(self, rooms: _Rooms, request: ClaimRequest) -> tuple[int, float | None] | None:
        """None: there is something to claim."""
        notifications = rooms.watch.notifications
        now_coming: Rows = await rooms.line.read("claimable", wanted(request) | {"now": rooms.table.now()})
        ((now, coming, claimable),) = now_coming
        return None if claimable else (notifications, None if coming is None else coming - now)


async def _run_on(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], sql: str, values: dict[str, Any]
) -> Rows:
    """With a cursor of ours: the caller's own kind may bind parameters or make rows in its own way."""
    if isinstance(connection, psycopg.Connection):
        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            teach(cursor.adapters)
            return cursor.execute(sql, values).fetchall()
    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as async_cursor:
        teach(async_cursor.adapters)
        return await (await async_cursor.execute(sql, values)).fetchall()


def _wanted(request: ClaimRequest) -> Wanted:
    return request.queues, request.types, request.capabilities


async def schema_of(url: str) -> Schema:
    address = address_of(url)
    connection = await PostgresPool(address).connect()
    try:
        return Schema(await version_of(connection, address), VERSION)
    except psycopg.Error as error:
        raise to_qo_error(address, error) from error
    finally:
        await connection.close()


def from_url(url: str, *, clock: Clock | None = None) -> Engine:
    return PostgresEngine(address_of(url), clock)
