"""A bucket with a gate before its writes, to see what happens while one is under way; or with the line cut."""

import asyncio
from collections.abc import AsyncIterator

from qo.bucket import Blob, Bucket
from qo.errors import OutcomeUnknown, StorageError


class GatedBucket:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.gate, self.arrived = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.is_cut = False  # writes time out; whether they arrived, nobody is told
        self.writes: list[bytes] = []

    async def get(self, key: str) -> Blob | None:
        return await self._bucket.get(key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self.writes.append(data)
        self.arrived.set()
        await self.gate.wait()
        if self.is_cut:
            raise OutcomeUnknown("the line is cut")
        return await self._bucket.put(key, data, expected=expected)

    async def delete(self, key: str) -> None:
        raise StorageError(f"nobody deletes {key}")

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(key)

    def now(self) -> float:
        return self._bucket.now()
