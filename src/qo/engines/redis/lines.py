"""Connections to the primary. One exchange: commands out, as many replies back, nothing repeated in secret."""

import asyncio
import os
from typing import Any, cast

import hiredis
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError, ResponseError

from qo.engines.redis.address import Address
from qo.engines.redis.trouble import has_moved_on, storage_error
from qo.errors import StorageError

_MOST = 16  # connections an engine keeps; more callers wait their turn
_CONNECT, _ANSWER = 5.0, 15.0  # seconds


class Unsent(Exception):
    """Nothing reached the server."""


class Doubtful(Exception):
    """The server may have taken some or all of it."""


def pack_command(*words: str | int | bytes) -> bytes:
    """A command as it travels. In C: the driver's own takes a microsecond a word."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class Lines:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: Any = _pool(address)  # the driver is typed in part only
        self._idle: list[AbstractConnection] = []
        self._room = asyncio.Semaphore(_MOST)
        self.is_open = True  # a call may still be under way when the engine is closed: it keeps no connection then
        self._pid = os.getpid()

    @property
    def shown(self) -> str:
        return self._address.shown

    async def exchange(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The replies to some commands, sent together; a refusal stands in the list as the error it is."""
        if os.getpid() != self._pid:
            raise StorageError(f"{self.shown} was opened before a fork; open an engine of its own in this process")
        data = b"".join([pack_command(*command) for command in commands])
        async with self._room:
            line = await self._free_line()
            try:
                replies = await _send_and_read(line, data, len(commands))
            except BaseException:
                await _drop(line)  # whatever it still sends belongs to nobody
                raise
            moved_on = any(isinstance(reply, RedisError) and has_moved_on(reply) for reply in replies)
            if moved_on or not self.is_open:
                await _drop(line)
            else:
                self._idle.append(line)
            return replies

    async def _free_line(self) -> AbstractConnection:
        while self._idle:
            line = self._idle.pop()
            try:
                if line.is_connected and not await _has_data(line):
                    return line
            except (RedisError, OSError):
                pass
            await _drop(line)  # the server closed it while it lay here
        return await self.connect()

    async def connect(self) -> AbstractConnection:
        """A new connection, the caller's own."""
        line: Any = self._pool.make_connection()
        try:
            async with asyncio.timeout(_CONNECT):
                await line.connect()
        except (RedisError, OSError) as error:  # TimeoutError is an OSError
            await _drop(line)
            raise Unsent from (error if str(error) else RedisError(f"no answer within {_CONNECT:g} s"))
        except BaseException:
            await _drop(line)
            raise
        return cast("AbstractConnection", line)

    def error(self, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
        return storage_error(self.shown, error, kind)

    async def close(self) -> None:
        if os.getpid() == self._pid:
            for line in self._idle:
                await _drop(line)
            if isinstance(self._pool, SentinelConnectionPool):
                await self._pool.sentinel_manager.aclose()
        self._idle.clear()


async def _send_and_read(line: AbstractConnection, data: bytes, size: int) -> list[Any]:
    replies: list[Any] = []
    try:
        async with asyncio.timeout(_ANSWER):
            await line.send_packed_command([data])
            for _ in range(size):
                try:
                    replies.append(await line.read_response())
                except (ResponseError, BusyLoadingError) as error:
                    replies.append(error)
    except TimeoutError as error:
        raise Doubtful from RedisError(f"no answer within {_ANSWER:g} s, {error}")
    except (RedisError, OSError) as error:
        raise Doubtful from error
    return replies


async def _has_data(line: Any) -> bool:
    """Data or an end that nobody asked for."""
    look = getattr(line, "can_read", None) or line.can_read_destructive  # its name before redis-py 8
    found: bool = await look()
    return found


async def _drop(line: AbstractConnection) -> None:
    await line.disconnect(nowait=True)


def _pool(address: Address) -> ConnectionPool:
    settings: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_timeout": None,  # `exchange` keeps the time for a whole batch
        "socket_connect_timeout": _CONNECT,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),  # a repeat in secret could run a script twice
        "protocol": 2,
    }
    if address.service is None:
        ((host, port),) = address.hosts
        kind = SSLConnection if address.tls else Connection
        return ConnectionPool(connection_class=kind, host=host, port=port, **settings)
    times = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=times)  # type: ignore[no-untyped-call]
    return SentinelConnectionPool(address.service, sentinel, **settings)  # type: ignore[no-untyped-call]
