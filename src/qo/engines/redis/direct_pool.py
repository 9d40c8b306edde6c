"""Blocking connections, for callers without an event loop.

`DirectPool` has the interface of `RedisPool`, but its coroutines never suspend, so that `run_blocking` can run them.
The code that runs and repeats scripts is therefore the same with and without an event loop.
"""

import os
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
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
        if os.getpid() != self._pid:
            shown_url = self._address.shown_url
            raise StorageError(f"{shown_url} was opened before a fork; open another engine in this process")
        data = b"".join([pack_command(*command) for command in commands])
        connection = self._idle_connection() or self._connect()
        try:
            replies = _send_and_read(connection, data, len(commands))
        except BaseException:
            connection.disconnect()  # a late reply must not answer the next command
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
                if not connection.can_read(timeout=0):  # otherwise the server closed it
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()

    def _connect(self) -> Any:
        address = self._address
        kind: Any = SSLConnection if address.tls else Connection  # the driver is only partly typed
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
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise Unsent from error
        return connection


def _send_and_read(connection: Any, data: bytes, number: int) -> list[Any]:
    replies: list[Any] = []
    try:
        connection.send_packed_command([data], check_health=False)
        for _ in range(number):
            try:
                replies.append(connection.read_response())
            except (ResponseError, BusyLoadingError) as error:
                replies.append(error)
    except (RedisError, OSError) as error:
        raise Doubtful from error
    return replies
