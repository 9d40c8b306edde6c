"""Waits until a claim may succeed: for a message of the server's channel, or by polling while not subscribed."""

import asyncio
import contextlib
from typing import NamedTuple

import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from qo.backoff import Backoff
from qo.engines.redis.pool import RedisPool, Unsent, pack_command
from qo.engines.redis.task_fields import RedisLane
from qo.model import ClaimRequest, eligibility

_POLL_INTERVAL = 1.0  # while not subscribed
_PING_AFTER = 15.0  # seconds without a message; if as many pass without a reply, the connection is dropped
_MAX_ALARM_DELAY = 15.0
_MIN_RECONNECT_DELAY, _MAX_RECONNECT_DELAY = 0.05, 2.0

_message = msgspec.json.Decoder(tuple[float | None, list[RedisLane]])


class EmptyClaim(NamedTuple):
    """The state at a claim that found nothing."""

    notifications: int  # the count of the watch before the claim
    due_at: float | None  # when the next task becomes due, by the event loop's clock


class RedisWatch:
    def __init__(self, pool: RedisPool, prefix: str) -> None:
        self._pool = pool
        self._channel = f"{{{prefix}}}:news"
        self._sleepers: dict[asyncio.Future[None], ClaimRequest] = {}
        self._listener: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self.notifications = 0  # grows with every message; a sleeper compares it, so that it misses none

    async def subscribe(self) -> bool:
        """Whether the watch is subscribed. Waits up to a poll interval for the subscription."""
        if not self._pool.is_open:
            return False
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        if not self._subscribed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_INTERVAL):
                    await self._subscribed.wait()
        return self._subscribed.is_set()

    @property
    def is_subscribed(self) -> bool:
        return self._subscribed.is_set()

    @property
    def waiters(self) -> int:
        """The number of callers that sleep."""
        return len(self._sleepers)

    async def sleep(self, request: ClaimRequest, claim: EmptyClaim, timeout: float) -> None:
        """Return when a task that matches the request may have become claimable since `claim`, or the time is up."""
        loop = asyncio.get_running_loop()
        seconds = timeout if self.is_subscribed else min(timeout, _POLL_INTERVAL)
        if claim.due_at is not None:
            seconds = min(seconds, claim.due_at - loop.time())
        if seconds <= 0 or self.notifications != claim.notifications:
            return
        sleeper = loop.create_future()
        alarm = loop.call_later(seconds, _end, sleeper)
        self._sleepers[sleeper] = request
        try:
            await sleeper
        finally:
            alarm.cancel()
            del self._sleepers[sleeper]

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener
        self._wake_all()

    # --- the subscription

    async def _listen(self) -> None:
        backoff = Backoff(_MIN_RECONNECT_DELAY, _MAX_RECONNECT_DELAY)
        while True:
            with contextlib.suppress(RedisError, OSError, Unsent):
                connection = await self._pool.connect()
                try:
                    await connection.send_packed_command([pack_command("SUBSCRIBE", self._channel)])
                    backoff.reset()
                    await self._receive(connection)
                finally:
                    self._subscribed.clear()
                    await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff.next())

    async def _receive(self, connection: AbstractConnection) -> None:
        """Handle messages until the server stops responding. Raises the driver's errors."""
        is_ping_sent = False
        while True:
            message = await connection.read_response(timeout=_PING_AFTER)
            if message is None:
                if is_ping_sent:
                    return
                await connection.send_packed_command([pack_command("PING")])
                is_ping_sent = True
                continue
            is_ping_sent = False
            if message[0] == b"message":
                self._notify(message[2])
            elif message[0] == b"subscribe":
                self._subscribed.set()
                self._wake_all()  # messages sent before the subscription were missed

    def _notify(self, data: bytes) -> None:
        self.notifications += 1
        due_in, lanes = _message.decode(data)
        for sleeper, request in self._sleepers.items():
            takes = eligibility(request)
            if any(takes(*lane[:3]) for lane in lanes):
                _end(sleeper)
            elif due_in is not None:
                # An early wake-up is harmless, so it need not be compared with the sleeper's own alarm.
                asyncio.get_running_loop().call_later(min(due_in, _MAX_ALARM_DELAY), _end, sleeper)

    def _wake_all(self) -> None:
        self.notifications += 1
        for sleeper in self._sleepers:
            _end(sleeper)


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
