"""Connections to the primary. One exchange: commands out, as many replies back, nothing repeated in secret."""

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
from qo.engines.redis.driver_errors import has_moved_on, to_qo_error
from qo.engines.redis.replication import Replication
from qo.engines.redis.sentinels import Sentinels
from qo.errors import StorageError

_MOST = 16  # connections an engine keeps; more callers wait their turn
CONNECT_TIMEOUT, ANSWER_TIMEOUT = 5.0, 15.0  # seconds


class Unsent(Exception):
    """Nothing reached the server."""


class Doubtful(Exception):
    """The server may have taken some or all of it."""


def pack_command(*words: str | int | bytes) -> bytes:
    """A command as it travels. In C: the driver's own takes a microsecond a word."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return packed


class RedisPool:
    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._sentinels = Sentinels(address.hosts, address.service, address.sentinel_login) if address.service else None
        self._copies = Replication(address, self._sentinels)
        self._primary: Host | None = None  # the last one we connected to
        self._idle: list[AbstractConnection] = []
        self._room = asyncio.Semaphore(_MOST)
        self.is_open = True  # a call may still be under way when the engine is closed: it keeps no connection then
        self._pid = os.getpid()

    @property
    def shown(self) -> str:
        return self._address.shown

    async def exchange(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:
        """The replies to some commands, sent together; a refusal stands in the list as the error it is.

        If they write, the replies come when the replicas that are asked for have it too.
        """
        if os.getpid() != self._pid:
            raise StorageError(f"{self.shown} was opened before a fork; open an engine of its own in this process")
        question = self._copies.question() if writing else []
        data = b"".join([pack_command(*command) for command in (*commands, *question)])
        async with self._room:
            line = await self._free_line()
            try:
                replies = await _send_and_read(line, data, len(commands) + len(question))
                replies, confirmation = replies[: len(commands)], replies[len(commands) :]
                if not all(isinstance(reply, RedisError) for reply in replies):
                    await self._confirm(line, confirmation)
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
                if line.is_connected and _host(line) == self._primary and not await _has_data(line):
                    return line
            except (RedisError, OSError):
                pass
            await _drop(line)  # the server closed it while it lay here, or another one took over
        return await self.connect()

    async def connect(self) -> AbstractConnection:
        """A new connection, the caller's own."""
        line: Any = None  # the driver is typed in part only
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                host = await self._sentinels.primary() if self._sentinels else self._address.hosts[0]
                line = _line(self._address, host)
                await line.connect()
                if self._sentinels:
                    await line.send_command("ROLE")
                    self._copies.meet(host, await line.read_response())
        except BaseException as error:
            if line is not None:
                await _drop(line)
            if isinstance(error, RedisError | OSError):  # TimeoutError is an OSError
                raise Unsent from (error if str(error) else RedisError(f"no answer within {CONNECT_TIMEOUT:g} s"))
            raise
        self._primary = host
        return cast("AbstractConnection", line)

    async def _confirm(self, line: AbstractConnection, replies: list[Any]) -> None:
        async def ask(commands: Sequence[tuple[Any, ...]]) -> list[Any]:
            return await _send_and_read(line, b"".join([pack_command(*one) for one in commands]), len(commands))

        try:
            if replies:
                await self._copies.check(_host(line), replies, ask)
        except RedisError as error:
            raise Doubtful from error

    def error(self, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
        return to_qo_error(self.shown, error, kind)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        if os.getpid() == self._pid:
            for line in self._idle:
                await _drop(line)
        self._idle.clear()


async def _send_and_read(line: AbstractConnection, data: bytes, size: int) -> list[Any]:
    replies: list[Any] = []
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await line.send_packed_command([data])
            for _ in range(size):
                try:
                    replies.append(await line.read_response())
                except (ResponseError, BusyLoadingError) as error:
                    replies.append(error)
    except TimeoutError as error:
        raise Doubtful from RedisError(f"no answer within {ANSWER_TIMEOUT:g} s, {error}")
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


def _line(address: RedisAddress, host: Host) -> AbstractConnection:
    kind = SSLConnection if address.tls else Connection
    return kind(
        host=host.name,
        port=host.port,
        db=address.db,
        username=address.username,
        password=address.password,
        socket_timeout=None,  # `exchange` keeps the time for a whole batch
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_keepalive=True,
        retry=Retry(NoBackoff(), 0),  # a repeat in secret could run a script twice
        protocol=2,
    )


def _host(line: Any) -> Host:
    return Host(line.host, line.port)
