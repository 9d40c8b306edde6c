"""Waiting until a claim may succeed: told by the server's own channel, or looking now and then while that is away."""

import asyncio
import contextlib
from typing import NamedTuple

import msgspec
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import RedisError

from qo.backoff import Backoff
from qo.engines.redis.pool import RedisPool, Unsent, pack_command
from qo.engines.redis.task_fields import Place
from qo.model import ClaimRequest, eligibility

_POLL = 1.0  # seconds between two looks while nobody tells us
_QUIET = 15.0  # seconds without a word after which the channel is asked whether it is still there
_SHORTEST, _LONGEST = 0.05, 2.0  # seconds between two tries to listen

_news = msgspec.json.Decoder(tuple[float | None, list[Place]])


class EmptyClaim(NamedTuple):
    """What a claim that found nothing saw."""

    told: int  # how much had been heard by then
    due_at: float | None  # when the next task becomes due, by the event loop's clock


class RedisWatch:
    def __init__(self, lines: RedisPool, prefix: str) -> None:
        self._lines = lines
        self._channel = f"{{{prefix}}}:news"
        self._sleepers: dict[asyncio.Future[None], ClaimRequest] = {}
        self._listener: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()
        self.told = 0

    async def listen(self) -> bool:
        """Make sure that we are told. False: it is not possible just now."""
        if not self._lines.is_open:
            return False
        if self._listener is None or self._listener.done():
            self._listener = asyncio.get_running_loop().create_task(self._listen())
        if not self._listening.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL):
                    await self._listening.wait()
        return self._listening.is_set()

    @property
    def is_listening(self) -> bool:
        return self._listening.is_set()

    async def sleep(self, request: ClaimRequest, look: EmptyClaim, timeout: float) -> None:
        """Until something happened since the look, or becomes due."""
        loop = asyncio.get_running_loop()
        seconds = timeout if self.is_listening else min(timeout, _POLL)
        if look.due_at is not None:
            seconds = min(seconds, look.due_at - loop.time())
        if seconds <= 0 or self.told != look.told:
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

    # --- listening

    async def _listen(self) -> None:
        backoff = Backoff(_SHORTEST, _LONGEST)
        while True:
            with contextlib.suppress(RedisError, OSError, Unsent):
                line = await self._lines.connect()
                try:
                    await line.send_packed_command([pack_command("SUBSCRIBE", self._channel)])
                    backoff.reset()
                    await self._hear(line)
                finally:
                    self._listening.clear()
                    await line.disconnect(nowait=True)
            await asyncio.sleep(backoff.next())

    async def _hear(self, line: AbstractConnection) -> None:
        """Until the channel falls silent; the driver's errors end it too."""
        asked = False
        while True:
            heard = await line.read_response(timeout=_QUIET)
            if heard is None:
                if asked:
                    return
                await line.send_packed_command([pack_command("PING")])
                asked = True
                continue
            asked = False
            if heard[0] == b"message":
                self._tell(heard[2])
            elif heard[0] == b"subscribe":
                self._listening.set()
                self._wake_all()  # something may have been said while nobody listened

    def _tell(self, data: bytes) -> None:
        self.told += 1
        due_in, places = _news.decode(data)
        for sleeper, request in self._sleepers.items():
            takes = eligibility(request)
            if any(takes(*place[:3]) for place in places):
                _end(sleeper)
            elif due_in is not None:
                # Waking up early is harmless, so it need not be known whether the sleeper's own alarm is earlier.
                asyncio.get_running_loop().call_later(min(due_in, _QUIET), _end, sleeper)

    def _wake_all(self) -> None:
        self.told += 1
        for sleeper in self._sleepers:
            _end(sleeper)


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
