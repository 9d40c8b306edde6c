"""Connections to the primary. An exchange sends commands and reads as many replies; it never repeats a command."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError

from qo.engines.redis.address import Host, RedisAddress
from qo.engines.redis.driver_errors import is_not_primary, to_qo_error
from qo.engines.redis.replication import Replication, Sentinels
from qo.errors import StorageError

_MAX_CONNECTIONS = 16  # of one engine; further callers wait
CONNECT_TIMEOUT, RESPONSE_TIMEOUT = 5.0, 15.0


class Unsent(Exception):
    """The server received none of the commands."""


class Doubtful(Exception):
    """The server may have executed some or all of the commands."""


def pack_command(*words: str | int | bytes) -> bytes:
    """Encode a command for the wire. Packed in C, because the driver's own encoder takes a microsecond per word."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class RedisPool:
    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._sentinels = Sentinels(address.hosts, address.service, address.sentinel_login) if address.service else None
        self._replication = Replication(address, self._sentinels)
        self._primary: Host | None = None  # of the newest connection
        self._idle: list[AbstractConnection] = []
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self.is_open = True  # a call that ends after the engine was closed must not return its connection to the pool
        self._pid = os.getpid()

    async def exchange(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:
        """Send commands together and return their replies; a refused command has its error in the list.

        `writing`: return only when the required replicas have the write. Raises Unsent or Doubtful.
        """
        if os.getpid() != self._pid:
            shown_url = self._address.shown_url
            raise StorageError(f"{shown_url} was opened before a fork; open another engine in this process")
        confirmation = self._replication.confirmation_commands() if writing else []
        data = b"".join([pack_command(*command) for command in (*commands, *confirmation)])
        async with self._slots:
            connection = await self._idle_connection() or await self.connect()
            try:
                replies = await _send_and_read(connection, data, len(commands) + len(confirmation))
                replies, confirmed = replies[: len(commands)], replies[len(commands) :]
                if not all(isinstance(reply, RedisError) for reply in replies):
                    await self._confirm(connection, confirmed)
            except BaseException:
                await _disconnect(connection)  # a late reply must not answer the next command
                raise
            if not self.is_open or any(isinstance(reply, RedisError) and is_not_primary(reply) for reply in replies):
                await _disconnect(connection)
            else:
                self._idle.append(connection)
            return replies

    async def _idle_connection(self) -> AbstractConnection | None:
        while self._idle:
            connection = self._idle.pop()
            try:
                if connection.is_connected and _host(connection) == self._primary and not await _has_data(connection):
                    return connection
            except (RedisError, OSError):
                pass
            await _disconnect(connection)  # the server closed it, or there is another primary
        return None

    async def connect(self) -> AbstractConnection:
        """A new connection that belongs to the caller. Raises Unsent."""
        connection: Any = None  # the driver is only partly typed
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                host = await self._sentinels.primary() if self._sentinels else self._address.hosts[0]
                connection = _new_connection(self._address, host)
                await connection.connect()
                if self._sentinels:
                    await connection.send_command("ROLE")
                    self._replication.add_connection(host, await connection.read_response())
        except BaseException as error:
            if connection is not None:
                await _disconnect(connection)
            if isinstance(error, RedisError | OSError):  # TimeoutError is an OSError
                raise Unsent from (error if str(error) else RedisError(f"no response within {CONNECT_TIMEOUT:g} s"))
            raise
        self._primary = host
        return cast("AbstractConnection", connection)

    async def _confirm(self, connection: AbstractConnection, replies: list[Any]) -> None:
        async def send(commands: Sequence[tuple[Any, ...]]) -> list[Any]:
            data = b"".join([pack_command(*command) for command in commands])
            return await _send_and_read(connection, data, len(commands))

        try:
            if replies:
                await self._replication.check(_host(connection), replies, send)
        except RedisError as error:
            raise Doubtful from error

    def error(self, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
        return to_qo_error(self._address.shown_url, error, kind)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if os.getpid() == self._pid:
            for connection in self._idle:
                await _disconnect(connection)
        self._idle.clear()


async def _send_and_read(connection: AbstractConnection, data: bytes, number: int) -> list[Any]:
    replies: list[Any] = []
    try:
        async with asyncio.timeout(RESPONSE_TIMEOUT):
            await connection.send_packed_command([data])
            for _ in range(number):
                try:
                    replies.append(await connection.read_response())
                except (ResponseError, BusyLoadingError) as error:
                    replies.append(error)
    except TimeoutError as error:
        raise Doubtful from RedisError(f"no response within {RESPONSE_TIMEOUT:g} s, {error}")
    except (RedisError, OSError) as error:
        raise Doubtful from error
    return replies


async def _has_data(connection: Any) -> bool:
    """Whether an idle connection has unexpected data, or the server has closed it."""
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before redis-py 8
    found: bool = await can_read()
    return found


async def _disconnect(connection: AbstractConnection) -> None:
    await connection.disconnect(nowait=True)


def _new_connection(address: RedisAddress, host: Host) -> AbstractConnection:
    kind = SSLConnection if address.tls else Connection
    return kind(
        host=host.name,
        port=host.port,
        db=address.db,
        username=address.username,
        password=address.password,
        socket_timeout=None,  # `_send_and_read` limits the time of a whole batch
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),  # a retry by the driver could run a script twice
        protocol=2,
    )


def _host(connection: Any) -> Host:
    return Host(connection.host, connection.port)
