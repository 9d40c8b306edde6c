"""A view of a bucket that prepends a prefix to every key."""

from collections.abc import AsyncIterator

from qo.bucket import Blob, Bucket


class PrefixedBucket:
    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket, self._prefix = bucket, f"{prefix.strip('/')}/"

    async def get(self, key: str) -> Blob | None:
        return await self._bucket.get(self._prefix + key)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        return await self._bucket.put(self._prefix + key, data, expected=expected)

    async def delete(self, key: str) -> None:
        await self._bucket.delete(self._prefix + key)

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        after = self._prefix + after if after else ""
        async for key in self._bucket.keys(self._prefix + prefix, after=after):
            yield key.removeprefix(self._prefix)

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(self._prefix + key)

    def now(self) -> float:
        return self._bucket.now()
