"""The line to the server: a few connections, and what is to be done when one is cut."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from qo.engines.postgres.address import PostgresAddress
from qo.engines.postgres.arrays import teach
from qo.engines.postgres.driver_errors import AGAIN, LANE_GONE, to_qo_error
from qo.engines.postgres.statements import statement
from qo.errors import OutcomeUnknown, StorageError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_MOST = 5  # connections: a worker claims, settles, renews, looks around and waits at once
_TRIES = 4

# Every statement here is made for its index. Without the alternatives, wrong statistics cannot talk the planner out of
# it, and one plan is right for all parameters. A server that is set to lose commits is told not to lose ours.
_SETTINGS = """
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off;
SET jit = off; SET plan_cache_mode = force_generic_plan; SET client_min_messages = warning; SET application_name = 'qo';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""


class Cut(Exception):
    """The connection was lost while a statement was under way."""


class Known(StorageError):
    """Nothing was written: a task with this id is there already."""


class LaneGone(StorageError):
    """Nothing was written: a lane was removed since its number was read."""


class PostgresPool:
    """A connection is made when one is asked for and none is free. A broken one is thrown away, with all that lay
    idle beside it: so the way back after a restart of the server is one try, not one for each of them.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.pid = os.getpid()
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._room = asyncio.Semaphore(_MOST)
        self.is_open = True  # a call may still be under way when the engine is closed: it keeps no connection then

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        try:
            connection = await psycopg.AsyncConnection.connect(
                self.address.conninfo, autocommit=True, prepare_threshold=0
            )
        except psycopg.Error as error:
            raise to_qo_error(self.address, error) from error
        try:
            teach(connection.adapters)
            await connection.execute(_SETTINGS, prepare=False)
        except BaseException as error:
            await connection.close()
            if isinstance(error, psycopg.Error):
                raise to_qo_error(self.address, error) from error
            raise  # cancelled
        return connection

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def read(self, name: str, values: Mapping[str, Any]) -> Rows:
        return await self.persist(lambda _: self.once(name, values), kind=StorageError)

    async def write(self, name: str, values: Mapping[str, Any]) -> tuple[Rows, bool]:
        """For a statement that may be repeated; also, whether it had to be: then it may have been written before."""

        async def step(doubtful: bool) -> tuple[Rows, bool]:  # noqa: FBT001 - see persist
            return await self.once(name, values), doubtful

        return await self.persist(step)

    async def persist(self, step: Callable[[bool], Awaitable[T]], kind: type[StorageError] = OutcomeUnknown) -> T:
        """Take a step again when the line was cut in it. It is told if an earlier try may have been committed."""
        suspect: Cut | None = None
        for _ in range(_TRIES):
            try:
                return await step(suspect is not None)
            except Cut as error:
                suspect = error
            except OutcomeUnknown:
                raise
            except StorageError as error:
                if suspect is None:
                    raise
                raise kind(str(error)) from error.__cause__
        assert suspect is not None  # noqa: S101 - for the type checker
        raise kind(str(suspect)) from suspect.__cause__

    async def once(self, name: str, values: Mapping[str, Any]) -> Rows:
        return await self.execute(statement(name, self.address.schema), values)

    async def execute(self, sql: str, values: Mapping[str, Any]) -> Rows:
        """Run a statement, as a transaction of its own. Raises Cut if nobody knows whether it was committed."""
        async with self._room:
            for left in range(_TRIES - 1, -1, -1):
                connection = self._idle.pop() if self._idle else await self.connect()
                try:
                    return await self._run(connection, sql, values)
                except AGAIN as error:
                    if not left:
                        raise to_qo_error(self.address, error) from error
        raise AssertionError("unreachable")

    async def _run(self, connection: psycopg.AsyncConnection[Any], sql: str, values: Mapping[str, Any]) -> Rows:
        whole = False
        try:
            cursor = await connection.execute(sql, values, binary=True)
            rows = await cursor.fetchall() if cursor.description else []
            whole = True
        except psycopg.Error as error:
            if connection.broken:
                await self.close()
                raise Cut(str(to_qo_error(self.address, error))) from error
            whole = True
            if isinstance(error, AGAIN):
                raise
            if isinstance(error, errors.UniqueViolation):
                raise Known(str(to_qo_error(self.address, error))) from error
            if isinstance(error, LANE_GONE):
                raise LaneGone(str(to_qo_error(self.address, error))) from error
            raise to_qo_error(self.address, error) from error
        finally:
            if whole and self.is_open:
                self._idle.append(connection)
            else:  # closed, or cut, or the caller was cancelled in the middle of it
                with suppress(psycopg.Error):
                    await connection.close()
        return rows
