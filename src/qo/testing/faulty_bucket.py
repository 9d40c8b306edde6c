"""A bucket with faults of stores and networks, drawn from a seed. Nothing sleeps: late means some requests later."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from qo.bucket import Blob, Bucket
from qo.errors import Conflict, OutcomeUnknown, StorageError
from qo.testing.faults import Fault, Faults

T = TypeVar("T")
_LATE = 5  # a late write arrives after at most this many requests
_SLOW = 20  # a slow response takes at most this many iterations of the event loop


class FaultyBucket:
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
