"""Blocking connections, for callers without an event loop.

`DirectPool` has the interface of `RedisPool`, but its coroutines never suspend, so that `run_blocking` can run them.
The code that runs and repeats scripts is therefore the same with and without an event loop.
"""

import os
import select
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import hiredis
from redis.backoff import NoBackoff
from redis.connection import Connection, DefaultParser, SSLConnection
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from qo.engines.redis.address import RedisAddress
from qo.engines.redis.driver_errors import is_not_primary, to_qo_error
from qo.engines.redis.pool import CONNECT_TIMEOUT, RESPONSE_TIMEOUT, Doubtful, Unsent, pack_command
from qo.errors import StorageError

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing but a `DirectPool`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine without an event loop was suspended")


_READ_SIZE = 65_536  # bytes


class _Exchange:
    """A connection of the driver that sends and reads directly: the driver's methods are slower than the server."""

    _sock: Any  # the driver's

    def begin(self) -> None:
        """Call after `connect`, which logs in."""
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        # Not on Windows. TLS may have read more from the socket than was requested, and receives more than replies.
        is_plain = not isinstance(self, SSLConnection)
        self._poll = select.poll() if is_plain and hasattr(select, "poll") else None
        if self._poll is not None:
            self._poll.register(self._sock, select.POLLIN)

    def is_closed(self) -> bool:
        """Whether the server has closed the connection. No reply is expected now."""
        if self._poll is not None:
            return bool(self._poll.poll(0))
        readable: bool = self.can_read(timeout=0)  # type: ignore[attr-defined]  # a method of the driver
        return readable

    def exchange(self, data: bytes, number: int) -> list[Any]:
        """Send data with commands and read as many replies; a refused command has its error in the list."""
        sock, reader = self._sock, self._reader
        sock.sendall(data)
        replies: list[Any] = []
        while len(replies) < number:
            received = sock.recv(_READ_SIZE)
            if not received:
                raise LostConnection("the server closed the connection")
            reader.feed(received)
            while (reply := reader.gets()) is not False:  # False: more is to come
                replies.append(reply)
        return replies


class _PlainExchange(_Exchange, Connection): ...


class _TlsExchange(_Exchange, SSLConnection): ...


class DirectPool:
    """For one server without sentinels, and writes that no replica must confirm. Safe for any number of threads."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._idle: list[Any] = []  # shared by threads: append and pop are atomic
        self.is_open = True  # a call that ends after the engine was closed must not return its connection to the pool
        self._pid = os.getpid()

    async def exchange(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:  # noqa: ARG002 - as RedisPool
        """Send commands together and return their replies; a refused command has its error in the list.

        Raises Unsent or Doubtful.
        """
        return self.exchange_packed(b"".join([pack_command(*command) for command in commands]), len(commands))

    def exchange_packed(self, data: bytes, number: int) -> list[Any]:
        """As `exchange`, for a number of commands that are packed already."""
        if os.getpid() != self._pid:
            shown_url = self._address.shown_url
            raise StorageError(f"{shown_url} was opened before a fork; open another engine in this process")
        connection = self._idle_connection() or self._connect()
        try:
            replies: list[Any] = connection.exchange(data, number)
        except BaseException as error:
            connection.disconnect()  # a late reply must not answer the next command
            if isinstance(error, RedisError | OSError):
                raise Doubtful from error
            raise
        if not self.is_open or any(isinstance(reply, RedisError) and is_not_primary(reply) for reply in replies):
            connection.disconnect()
        else:
            self._idle.append(connection)
        return replies

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this pool blocks

    def error(self, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
        return to_qo_error(self._address.shown_url, error, kind)

    def close(self) -> None:
        self.is_open = False
        while self._idle and os.getpid() == self._pid:
            self._idle.pop().disconnect()

    def _idle_connection(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            try:
                if not connection.is_closed():
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()

    def _connect(self) -> Any:
        address = self._address
        kind: Any = _TlsExchange if address.tls else _PlainExchange  # the driver is only partly typed
        connection = kind(
            host=address.hosts[0].name,
            port=address.hosts[0].port,
            db=address.db,
            username=address.username,
            password=address.password,
            socket_timeout=RESPONSE_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # a retry by the driver could run a script twice
            protocol=2,
        )
        try:
            connection.connect()
            connection.begin()
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise Unsent from error
        return connection
