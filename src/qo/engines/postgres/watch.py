"""Waits until a claim may succeed: one connection listens for the notifications of all processes."""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from qo.engines.postgres.pool import PostgresPool
from qo.errors import StorageError

_POLL_INTERVAL = 1.0  # while not listening
_MAX_SLEEP = 5.0  # tasks that a crashed process had locked become claimable without a notification
_MIN_SLEEP = 0.02  # a task that is due may be locked by another claim
_RECONNECT_DELAY = 0.5


class PostgresWatch:
    """Counts notifications. A caller reads the count before its claim, so that it misses none until it sleeps."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._notified = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self.is_listening = False
        self.notifications = 0

    async def sleep(self, notifications: int, timeout: float, due_in: float | None) -> None:
        """Return once the count differs from `notifications`, a task becomes due, or it is time to poll."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())
        seconds = min(timeout, _MAX_SLEEP if self.is_listening else _POLL_INTERVAL)
        if due_in is not None:
            seconds = min(seconds, max(due_in, _MIN_SLEEP))
        if self.notifications == notifications and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._notified.wait()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        self._wake_all()

    def _wake_all(self) -> None:
        self.notifications += 1
        self._notified.set()
        self._notified = asyncio.Event()

    async def _listen(self) -> None:
        while True:
            with suppress(StorageError, psycopg.Error):
                connection = await self._pool.connect()
                try:
                    await self._receive(connection)
                finally:
                    self.is_listening = False
                    self._wake_all()  # notifications since the connection broke were missed
                    await connection.close()
            await asyncio.sleep(_RECONNECT_DELAY)

    async def _receive(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._pool.address.channel)))
        self.is_listening = True
        self._wake_all()  # notifications before LISTEN were missed
        async for _ in connection.notifies():
            self._wake_all()
