"""A bucket that counts its requests, to show what a layout costs."""

from collections import Counter
from collections.abc import AsyncIterator

from qo.bucket import Blob, Bucket

_PAGE_SIZE = 1000  # keys that a store lists in one request


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
