"""A pool of connections, and repeats of statements whose connection was lost."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from qo.engines.postgres.address import PostgresAddress
from qo.engines.postgres.arrays import register_arrays
from qo.engines.postgres.driver_errors import LANE_GONE, TRANSIENT, to_qo_error
from qo.engines.postgres.statements import statement
from qo.errors import OutcomeUnknown, StorageError

T = TypeVar("T")
Rows = list[tuple[Any, ...]]

_MAX_CONNECTIONS = 5  # a worker claims, settles, renews, reads and waits at the same time
_MAX_ATTEMPTS = 4

# Every statement is written for particular indexes. With the alternatives off, outdated statistics cannot mislead the
# planner, and one plan is right for all parameters. `synchronous_commit` must be on, because an acknowledged task must
# survive a crash.
_SETTINGS = """
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off;
SET jit = off; SET plan_cache_mode = force_generic_plan; SET client_min_messages = warning; SET application_name = 'qo';
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""


class ConnectionLost(Exception):
    """The connection was lost during a statement, which may have been committed."""


class TaskExists(StorageError):
    """Nothing was written: there is a task with this id."""


class LaneGone(StorageError):
    """Nothing was written: a lane was removed since its number was read."""


class PostgresPool:
    """Connects when a connection is needed and none is idle.

    A lost connection closes all idle ones, so that after a restart of the server one attempt fails, not one per
    connection.
    """

    def __init__(self, address: PostgresAddress) -> None:
        self.address = address
        self.pid = os.getpid()
        self._idle: list[psycopg.AsyncConnection[Any]] = []
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.is_open = True  # a call that ends after the engine was closed must not return its connection to the pool

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """A new connection that belongs to the caller. Raises StorageError."""
        try:
            connection = await psycopg.AsyncConnection.connect(
                self.address.conninfo, autocommit=True, prepare_threshold=0
            )
        except psycopg.Error as error:
            raise to_qo_error(self.address, error) from error
        try:
            register_arrays(connection.adapters)
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
        return await self.repeat_if_lost(lambda _: self.run(name, values), kind=StorageError)

    async def write(self, name: str, values: Mapping[str, Any]) -> tuple[Rows, bool]:
        """Run a statement that is safe to repeat. Returns also whether an earlier attempt may have been committed."""

        async def attempt(may_be_done: bool) -> tuple[Rows, bool]:  # noqa: FBT001 - see repeat_if_lost
            return await self.run(name, values), may_be_done

        return await self.repeat_if_lost(attempt)

    async def repeat_if_lost(
        self, attempt: Callable[[bool], Awaitable[T]], kind: type[StorageError] = OutcomeUnknown
    ) -> T:
        """Repeat an attempt that loses its connection. Its argument: whether an earlier one may have been committed.

        If no attempt succeeds after a connection was lost, an error of `kind` is raised.
        """
        lost: ConnectionLost | None = None
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await attempt(lost is not None)
            except ConnectionLost as error:
                lost = error
            except OutcomeUnknown:
                raise
            except StorageError as error:
                if lost is None:
                    raise
                raise kind(str(error)) from error.__cause__
        assert lost is not None  # noqa: S101 - for the type checker
        raise kind(str(lost)) from lost.__cause__

    async def run(self, name: str, values: Mapping[str, Any]) -> Rows:
        return await self.execute(statement(name, self.address.schema), values)

    async def execute(self, sql: str, values: Mapping[str, Any]) -> Rows:
        """Run a statement in its own transaction. Raises ConnectionLost if it may have been committed."""
        async with self._slots:
            for left in range(_MAX_ATTEMPTS - 1, -1, -1):
                connection = self._idle.pop() if self._idle else await self.connect()
                try:
                    return await self._execute_on(connection, sql, values)
                except TRANSIENT as error:
                    if not left:
                        raise to_qo_error(self.address, error) from error
        raise AssertionError("unreachable")

    async def _execute_on(self, connection: psycopg.AsyncConnection[Any], sql: str, values: Mapping[str, Any]) -> Rows:
        is_usable = False
        try:
            cursor = await connection.execute(sql, values, binary=True)
            rows = await cursor.fetchall() if cursor.description else []
            is_usable = True
        except psycopg.Error as error:
            if connection.broken:
                await self.close()
                raise ConnectionLost(str(to_qo_error(self.address, error))) from error
            is_usable = True
            if isinstance(error, TRANSIENT):
                raise
            raise self._refusal(error) from error
        finally:
            if is_usable and self.is_open:
                self._idle.append(connection)
            else:  # the pool is closed, the connection is lost, or the caller was cancelled during the statement
                with suppress(psycopg.Error):
                    await connection.close()
        return rows

    def _refusal(self, error: psycopg.Error) -> StorageError:
        refusal = to_qo_error(self.address, error)
        if isinstance(error, errors.UniqueViolation):
            return TaskExists(str(refusal))
        if isinstance(error, LANE_GONE):
            return LaneGone(str(refusal))
        return refusal
