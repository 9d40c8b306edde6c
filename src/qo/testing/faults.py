"""Faults between a caller and a store, and a bucket with such faults. The same seed gives the same faults."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import TypeVar

from qo.bucket import Blob, Bucket
from qo.errors import Conflict, OutcomeUnknown, StorageError


class Fault(Enum):
    LOST_REQUEST = "the request was lost, so the caller gets no response"
    LOST_RESPONSE = "the store handled the request, but its response was lost"
    LATE = "the caller gave up, and the store handles the request later"
    REFUSED = "the store is too busy"
    SLOW = "the response is slow"


class Faults:
    """Draws a fault, or none, for each request. The arguments are probabilities; their sum is at most 1."""

    def __init__(
        self,
        seed: int,
        *,
        lost_request: float = 0.0,
        lost_response: float = 0.0,
        late: float = 0.0,
        refused: float = 0.0,
        slow: float = 0.0,
    ) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - repeatable random numbers
        self._chances = {
            Fault.LOST_REQUEST: lost_request,
            Fault.LOST_RESPONSE: lost_response,
            Fault.LATE: late,
            Fault.REFUSED: refused,
            Fault.SLOW: slow,
        }
        if sum(self._chances.values()) > 1:
            raise ValueError("the sum of the probabilities is more than 1")

    def draw(self) -> Fault | None:
        point = self.dice.random()
        for fault, chance in self._chances.items():
            if point < chance:
                return fault
            point -= chance
        return None


T = TypeVar("T")
_LATE = 5  # a late write arrives after at most this many requests
_SLOW = 20  # a slow response takes at most this many iterations of the event loop


class FaultyBucket:
    """A bucket with faults of stores and networks. Nothing sleeps: late means some requests later."""

    def __init__(self, bucket: Bucket, faults: Faults) -> None:
        self.faults = faults
        self._bucket = bucket
        self._requests = 0
        self._late: list[tuple[int, Callable[[], Awaitable[object]]]] = []

    async def get(self, key: str) -> Blob | None:
        return await self._read(lambda: self._bucket.get(key))

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._write(lambda: self._bucket.put(key, data, expected=expected))

    async def delete(self, key: str) -> None:
        await self._write(lambda: self._bucket.delete(key))

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        await self._read(_nothing)
        async for key in self._bucket.keys(prefix, after=after):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._read(lambda: self._bucket.versions(key))

    def now(self) -> float:
        return self._bucket.now()

    async def settle(self) -> None:
        """Let all late writes arrive."""
        late, self._late = self._late, []
        for _, write in late:
            await _unheard(write)

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        fault = await self._meet()
        if fault is None or fault is Fault.SLOW:
            return await call()
        raise StorageError(f"injected fault: {fault.value}")

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        fault = await self._meet()
        if fault is None or fault is Fault.SLOW:
            return await call()
        if fault is Fault.REFUSED:
            raise StorageError(f"injected fault: {fault.value}")
        if fault is Fault.LOST_RESPONSE:
            await _unheard(call)
        elif fault is Fault.LATE:
            self._late.append((self._requests + self.faults.dice.randint(1, _LATE), call))
        raise OutcomeUnknown(f"injected fault: {fault.value}")

    async def _meet(self) -> Fault | None:
        self._requests += 1
        due = [write for when, write in self._late if when <= self._requests]
        self._late = [(when, write) for when, write in self._late if when > self._requests]
        for write in due:
            await _unheard(write)
        fault = self.faults.draw()
        if fault is Fault.SLOW:
            for _ in range(self.faults.dice.randint(1, _SLOW)):
                await asyncio.sleep(0)
        return fault


async def _unheard(write: Callable[[], Awaitable[object]]) -> None:
    """Execute a write whose caller gets no response."""
    try:
        await write()
    except Conflict:
        return


async def _nothing() -> None:
    return
