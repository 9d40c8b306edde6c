"""A bucket whose requests wait at gates, so that tests can act meanwhile, or whose connection is cut."""

import asyncio
from collections.abc import AsyncIterator

from qo.bucket import Blob, Bucket
from qo.errors import Conflict, OutcomeUnknown, StorageError


class GatedBucket:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.gate, self.arrived = asyncio.Event(), asyncio.Event()  # before a write
        self.written, self.read = asyncio.Event(), asyncio.Event()  # served, but without a response yet
        self.write_answers, self.read_answers = asyncio.Event(), asyncio.Event()
        for gate in (self.gate, self.write_answers, self.read_answers):
            gate.set()
        self.conflicts = 0
        self.is_cut = False  # writes time out, and their outcome is unknown

    async def get(self, key: str) -> Blob | None:
        blob = await self._bucket.get(key)
        self.read.set()
        await self.read_answers.wait()
        return blob

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self.arrived.set()
        await self.gate.wait()
        if self.is_cut:
            raise OutcomeUnknown("the line is cut")
        try:
            version = await self._bucket.put(key, data, expected=expected)
        except Conflict:
            self.conflicts += 1
            raise
        self.written.set()
        await self.write_answers.wait()
        if self.is_cut:
            raise OutcomeUnknown("the answer is lost")
        return version

    async def delete(self, key: str) -> None:
        raise StorageError(f"nobody deletes {key}")

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(key)

    def now(self) -> float:
        return self._bucket.now()
