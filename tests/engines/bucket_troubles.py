"""Buckets for the tests of layouts: one whose process dies, and a slow one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from qo.bucket import Blob, Bucket
from tests.conditions import delay

T = TypeVar("T")


class Killed(BaseException):
    """The process is dead: none of its requests reaches the store any more."""


class DyingBucket:
    """Serves a number of requests, after which the process that uses it is dead."""

    def __init__(self, bucket: Bucket, lives: int) -> None:
        self._bucket, self.lives = bucket, lives

    async def _do(self, request: Callable[[], Awaitable[T]]) -> T:
        if self.lives <= 0:
            raise Killed
        self.lives -= 1
        answer = await request()
        if self.lives <= 0:
            raise Killed  # the request was served, but the process is dead
        return answer

    async def get(self, key: str) -> Blob | None:
        return await self._do(lambda: self._bucket.get(key))

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._do(lambda: self._bucket.put(key, data, expected=expected))

    async def delete(self, key: str) -> None:
        await self._do(lambda: self._bucket.delete(key))

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        for key in await self._do(lambda: _listed(self._bucket, prefix, after)):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return await self._do(lambda: self._bucket.versions(key))

    def now(self) -> float:
        return self._bucket.now()


class SlowBucket:
    """As slow as a cloud store: writes take `writing` seconds, reads and listings `reading`."""

    def __init__(self, bucket: Bucket, *, writing: float = 0.028, reading: float = 0.025) -> None:
        self._bucket, self._writing, self._reading = bucket, writing, reading

    async def get(self, key: str) -> Blob | None:
        await delay(self._reading)
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await delay(self._writing)
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await delay(self._writing)
        await self._bucket.delete(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        await delay(self._reading)
        async for key in self._bucket.keys(prefix, after=after):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        await delay(self._reading)
        return await self._bucket.versions(key)

    def now(self) -> float:
        return self._bucket.now()


async def _listed(bucket: Bucket, prefix: str, after: str) -> list[str]:
    return [key async for key in bucket.keys(prefix, after=after)]
