"""Connections for code without an event loop: an exchange blocks the calling thread, and its coroutine never suspends.

So the scripts, their receipts and their repeats are the same code as on an event loop. `run_blocking` drives it.
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
from qo.engines.redis.driver_errors import has_moved_on, to_qo_error
from qo.engines.redis.pool import ANSWER_TIMEOUT, CONNECT_TIMEOUT, Doubtful, Unsent, pack_command
from qo.errors import StorageError

T = TypeVar("T")


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing but a `DirectPool`."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine without an event loop was suspended")


class DirectPool:
    """For one server without sentinels, whose replicas need not confirm a write. Safe for any number of threads."""

    def __init__(self, address: RedisAddress) -> None:
        self._address = address
        self._idle: list[Any] = []  # its append and pop are atomic
        self.is_open = True  # a call may still be under way when the engine is closed: it keeps no connection then
        self._pid = os.getpid()

    async def exchange(self, *commands: tuple[Any, ...], writing: bool = False) -> list[Any]:  # noqa: ARG002 - as RedisPool
        """The replies to some commands, sent together; a refusal stands in the list as the error it is."""
        if os.getpid() != self._pid:
            shown = self._address.shown
            raise StorageError(f"{shown} was opened before a fork; open an engine of its own in this process")
        data = b"".join([pack_command(*command) for command in commands])
        connection = self._free_connection()
        try:
            replies = _send_and_read(connection, data, len(commands))
        except BaseException:
            connection.disconnect()  # a late reply must not answer the next command
            raise
        if not self.is_open or any(isinstance(reply, RedisError) and has_moved_on(reply) for reply in replies):
            connection.disconnect()
        else:
            self._idle.append(connection)
        return replies

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this pool blocks

    def error(self, error: BaseException, kind: type[StorageError] = StorageError) -> StorageError:
        return to_qo_error(self._address.shown, error, kind)

    def close(self) -> None:
        self.is_open = False
        while self._idle and os.getpid() == self._pid:
            self._idle.pop().disconnect()

    def _free_connection(self) -> Any:
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._connect()
            try:
                if not connection.can_read(timeout=0):  # else the server closed it while it was idle
                    return connection
            except (RedisError, OSError):
                pass
            connection.disconnect()

    def _connect(self) -> Any:
        address = self._address
        kind: Any = SSLConnection if address.tls else Connection  # the driver is typed in part only
        connection = kind(
            host=address.hosts[0].name,
            port=address.hosts[0].port,
            db=address.db,
            username=address.username,
            password=address.password,
            socket_timeout=ANSWER_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),  # a repeat by the driver could run a script twice
            protocol=2,
        )
        try:
            connection.connect()
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise Unsent from error
        return connection


def _send_and_read(connection: Any, data: bytes, size: int) -> list[Any]:
    replies: list[Any] = []
    try:
        connection.send_packed_command([data], check_health=False)
        for _ in range(size):
            try:
                replies.append(connection.read_response())
            except (ResponseError, BusyLoadingError) as error:
                replies.append(error)
    except (RedisError, OSError) as error:
        raise Doubtful from error
    return replies
