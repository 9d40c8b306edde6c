"""Buckets for tests and single processes: one in a dict, and one that counts the requests of another."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

from qo.bucket import ANY, NEW, Blob, Bucket, check_key
from qo.clock import Clock, system_clock
from qo.errors import Conflict

_PAGE_SIZE = 1000  # keys that a store lists in one request


class MemoryBucket:
    def __init__(self, clock: Clock = system_clock) -> None:
        self._blobs: dict[str, list[Blob]] = {}
        self._numbers = count(1)
        self._clock = clock

    async def get(self, key: str) -> Blob | None:
        await asyncio.sleep(0)  # switch to other coroutines, like a network request
        return self._present(check_key(key))

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        await asyncio.sleep(0)
        stored = self._present(check_key(key))
        if expected not in (ANY, stored.version if stored else NEW):
            raise Conflict(f"{key} was written by another process")
        blob = Blob(data, str(next(self._numbers)), self._clock())
        self._blobs.setdefault(key, []).append(blob)
        return blob.version

    async def delete(self, key: str) -> None:
        await asyncio.sleep(0)
        self._blobs.pop(check_key(key), None)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        for key in sorted(key for key in self._blobs if key.startswith(prefix) and key > after):
            yield key

    async def versions(self, key: str) -> list[Blob]:
        return list(self._blobs.get(key, ()))

    def now(self) -> float:
        return self._clock()

    def _present(self, key: str) -> Blob | None:
        versions = self._blobs.get(key)
        return versions[-1] if versions else None


class CountingBucket:
    """Forwards every call. `requests` counts by kind: get, put, delete, list (pages), versions."""

    def __init__(self, bucket: Bucket) -> None:
        self.requests: Counter[str] = Counter()
        self._bucket = bucket

    async def get(self, key: str) -> Blob | None:
        self.requests["get"] += 1
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self.requests["put"] += 1  # refused writes count too: they are billed
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        await self._bucket.delete(key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        self.requests["list"] += 1
        listed = 0
        async for key in self._bucket.keys(prefix, after=after):
            if listed and listed % _PAGE_SIZE == 0:
                self.requests["list"] += 1
            listed += 1
            yield key

    async def versions(self, key: str) -> list[Blob]:
        self.requests["versions"] += 1
        return await self._bucket.versions(key)

    def now(self) -> float:
        return self._bucket.now()
