"""Sending an image to the bucket, for as long as it takes."""

import logging
from collections.abc import AsyncIterator

from qo.bucket import Blob, Bucket
from qo.buckets.own_writes import put_document
from qo.engines.sqlite_object.image import Image, names
from qo.errors import StorageError

log = logging.getLogger("qo.engines.sqlite_object")
_WORTH_TELLING = 3  # failures in a row: some two hundred milliseconds


class Upload:
    """One write over one version. `land` answers as `put_document` does; then `version` is the new one."""

    def __init__(self, bucket: Bucket, key: str, image: Image) -> None:
        self._bucket, self._key = _Telling(bucket), key
        self.data, self.write = image.encode()
        self.version = ""

    async def land(self, *, expected: str, patience: float) -> None:
        self.version = await put_document(
            self._bucket,
            self._key,
            self.data,
            expected=expected,
            is_ours=lambda stored: names(stored, self.write),
            patience=patience,
        )


class _Telling:
    """Says once that the bucket makes trouble, if it goes on: whoever waits without end should find out why."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._failures = 0

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        try:
            return await self._bucket.put(key, data, expected=expected)
        except StorageError as error:
            self._failures += 1
            level = logging.WARNING if self._failures == _WORTH_TELLING else logging.DEBUG
            log.log(level, "%s was not written and is sent again, until the bucket has it: %s", key, error)
            raise

    async def get(self, key: str) -> Blob | None:
        return await self._bucket.get(key)

    async def delete(self, key: str) -> None:
        await self._bucket.delete(key)

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)

    async def versions(self, key: str) -> list[Blob]:
        return await self._bucket.versions(key)

    def now(self) -> float:
        return self._bucket.now()
