"""Waiting until a claim may succeed: one connection listens for the news of all processes."""

import asyncio
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from qo.engines.postgres.pool import PostgresPool
from qo.errors import StorageError

_POLL = 1.0  # seconds between two looks while nobody listens for us
_LONGEST = 5.0  # seconds: what a crashed process had locked comes free without news
_SHORTEST = 0.02  # seconds: what is due may be in another's hands
_PAUSE = 0.5  # seconds before listening is tried again


class PostgresWatch:
    """Counts what it hears. Whoever found nothing to claim noted the count before, and may sleep while it stands."""

    def __init__(self, line: PostgresPool) -> None:
        self._line = line
        self._bell = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._listening = False
        self.heard = 0

    async def sleep(self, heard: int, timeout: float, due_in: float | None) -> None:
        """Until there is news since `heard`, or `due_in` is over, or it is time to look again."""
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._listen())
        longest = min(timeout, _LONGEST if self._listening else _POLL)
        if due_in is not None:
            longest = min(longest, max(due_in, _SHORTEST))
        if self.heard == heard and longest > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(longest):
                    await self._bell.wait()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        self._tell()

    def _tell(self) -> None:
        self.heard += 1
        self._bell.set()
        self._bell = asyncio.Event()

    async def _listen(self) -> None:
        while True:
            with suppress(StorageError, psycopg.Error):
                connection = await self._line.connect()
                try:
                    await self._hear(connection)
                finally:
                    self._listening = False
                    self._tell()  # what was said since may have been missed
                    await connection.close()
            await asyncio.sleep(_PAUSE)

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._line.address.channel)))
        self._listening = True
        self._tell()  # what was said before may have been missed
        async for _ in connection.notifies():
            self._tell()
