"""The Postgres engine: a pool of connections, a reader, a table to write and a watch behind the engine port."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg

from qo.clock import Clock
from qo.engine import Engine
from qo.engines.hand_backs import HandBacks
from qo.engines.postgres.address import PostgresAddress, address_of
from qo.engines.postgres.arrays import register_arrays
from qo.engines.postgres.driver_errors import to_qo_error
from qo.engines.postgres.migrations import prepare, version_of
from qo.engines.postgres.pool import PostgresPool, Rows
from qo.engines.postgres.reader import PostgresReader
from qo.engines.postgres.rows import claim_parameters
from qo.engines.postgres.statements import VERSION, statement
from qo.engines.postgres.table import PostgresTable, added_from
from qo.engines.postgres.watch import PostgresWatch
from qo.engines.requests import retry_opening
from qo.errors import StorageError
from qo.formats import Schema
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

# Queues, types, capabilities, whether tasks with a group are requested, and the limits of groups.
_Matching: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], frozenset[str], bool, frozenset[tuple[str, int]]]
_MAX_EMPTY_CLAIMS = 1000  # for which no wait was requested
_EmptyClaim: TypeAlias = tuple[int, float | None]  # notifications before it, seconds until the next task is due


class OpenPostgres:
    """The state of an open engine."""

    def __init__(self, pool: PostgresPool, clock: Clock | None) -> None:
        self.pool = pool
        self.table = PostgresTable(pool, clock)
        self.hand_backs = HandBacks(self.table.apply)
        self.reader = PostgresReader(pool, self.table)
        self.watch = PostgresWatch(pool)


class PostgresEngine(Engine):
    def __init__(self, address: PostgresAddress, clock: Clock | None = None) -> None:
        self._address = address
        self._clock = clock  # None: the server's clock
        self._open_engine: OpenPostgres | None = None
        self._opening = asyncio.Lock()
        self._empty_claims: dict[_Matching, _EmptyClaim] = {}

    async def open(self) -> None:
        async with self._opening:
            if self._open_engine is not None and self._open_engine.pool.pid == os.getpid():
                return
            pool = PostgresPool(self._address)
            connection = await retry_opening(pool.connect)
            try:
                await prepare(connection, self._address)
            finally:
                await connection.close()
            self._open_engine = OpenPostgres(pool, self._clock)

    async def close(self) -> None:
        opened, self._open_engine = self._open_engine, None
        if opened is None or opened.pool.pid != os.getpid():  # a forked child has nothing to close
            return
        opened.pool.is_open = False
        await opened.hand_backs.finish()
        await opened.watch.close()
        await opened.pool.close()

    def opened(self) -> OpenPostgres:
        """The parts of the open engine. Raises StorageError if it is not open."""
        opened = self._open_engine
        if opened is None:
            raise StorageError(f"{self._address.shown_url} is not open; call open() first")
        if opened.pool.pid != os.getpid():
            shown_url = self._address.shown_url
            raise StorageError(f"{shown_url} was opened before a fork; open another engine in this process")
        return opened

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return await self.opened().table.add(tasks)

    async def add_on(
        self, connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], tasks: Sequence[NewTask]
    ) -> list[Added]:
        """Add in the transaction of the caller's connection: the tasks exist if and only if the caller commits."""
        check_distinct(task.id for task in tasks)
        if not tasks:
            return []
        values = await self.opened().table.parameters_for_transaction(tasks)
        try:
            inserted = await _run_on(connection, statement("add", self._address.schema), values)
            has_key = any(task.idempotency_key is not None for task in tasks)
            last = await _run_on(connection, statement("last", self._address.schema), values) if has_key else []
            return added_from(tasks, inserted, last)
        except psycopg.Error as error:
            raise to_qo_error(self._address, error, doing=", on the caller's connection") from error

    async def claim(self, request: ClaimRequest) -> list[Task]:
        opened = self.opened()
        notifications = opened.watch.notifications
        tasks = await opened.hand_backs.claim(opened.table.claim(request))
        if not tasks:
            if len(self._empty_claims) >= _MAX_EMPTY_CLAIMS:
                self._empty_claims.clear()
            self._empty_claims[_matching(request)] = (notifications, opened.table.due_in)
        return tasks

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self.opened().table.apply(changes)

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self.opened().table.delete(ids)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self.opened().table.write_note(name, data, expected)

    async def drop_note(self, name: str) -> None:
        await self.opened().table.drop_note(name)

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self.opened().reader.get(ids)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return await self.opened().reader.find(where, limit, page_start(after, created_before))

    async def count(self, batch: str | None = None) -> Counts:
        return await self.opened().reader.count(batch)

    async def history(self, task_id: str) -> list[Event]:
        return await self.opened().reader.history(task_id)

    async def now(self) -> float:
        return await self.opened().reader.now()

    async def read_note(self, name: str) -> Note | None:
        return await self.opened().reader.read_note(name)

    async def notes(self, prefix: str) -> list[Note]:
        return await self.opened().reader.notes(prefix)

    async def repair(self) -> int:
        """Remove lanes without tasks. Nothing was broken, so no repair is reported."""
        await self.opened().table.lanes.remove_empty()
        return 0

    # --- waiting

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        """Wait for claimable tasks. After a claim that found nothing, this sends no statement."""
        opened = self.opened()
        empty_claim = self._empty_claims.pop(_matching(request), None) or await self._check(opened, request)
        if empty_claim is not None:
            notifications, due_in = empty_claim
            await opened.watch.sleep(notifications, timeout, due_in)

    async def _check(self, opened: OpenPostgres, request: ClaimRequest) -> _EmptyClaim | None:
        """None: a task can be claimed."""
        notifications = opened.watch.notifications
        rows = await opened.pool.read("claimable", claim_parameters(request) | {"now": opened.table.now()})
        ((now, next_due_at, is_claimable),) = rows
        return None if is_claimable else (notifications, None if next_due_at is None else next_due_at - now)


async def _run_on(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any], sql: str, values: dict[str, Any]
) -> Rows:
    """Use a new cursor, because the caller's cursor class may bind parameters or return rows differently."""
    if isinstance(connection, psycopg.Connection):
        with psycopg.Cursor(connection, row_factory=psycopg.rows.tuple_row) as cursor:
            register_arrays(cursor.adapters)
            return cursor.execute(sql, values).fetchall()
    async with psycopg.AsyncCursor(connection, row_factory=psycopg.rows.tuple_row) as async_cursor:
        register_arrays(async_cursor.adapters)
        return await (await async_cursor.execute(sql, values)).fetchall()


def _matching(request: ClaimRequest) -> _Matching:
    groups = frozenset(request.group_limits.items())
    return request.queues, request.types, request.capabilities, request.takes_groups, groups


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
