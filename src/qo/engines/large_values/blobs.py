"""Writes, reads and removes the blobs of large values, with retries."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from qo.bucket import ANY, Blob, Bucket
from qo.engines.large_values.references import (
    DATA,
    Kind,
    data_key,
    is_intact,
    literal,
    own_key,
    reference,
    referred,
    value_of,
)
from qo.engines.parallel import in_parallel
from qo.engines.retry import retry
from qo.errors import StorageError
from qo.model import Task, is_id

log = logging.getLogger("qo.engines")
MAX_TRANSFERS = 16  # concurrent, because blobs are large

Answer = TypeVar("Answer")


class BlobStore:
    """Stores values above `inline` bytes as blobs. Retries failed requests for at least `retry_timeout` seconds."""

    def __init__(self, bucket: Bucket, *, inline: int, retry_timeout: float) -> None:
        self._bucket, self._inline, self._retry_timeout = bucket, inline, retry_timeout

    async def keep(self, task_id: str, kind: Kind, name: str, value: bytes) -> bytes:
        """Return what the task stores: the value, or a reference to the blob that now holds it."""
        if len(value) <= self._inline or not is_id(task_id):
            return literal(value)
        key = data_key(task_id, kind, name)
        await self._retry(lambda: self._bucket.put(key, value, expected=ANY))
        return reference(key, value)

    async def fetch(self, task: Task, kind: Kind) -> bytes | None:
        """The value. None: the task has none, its blob is missing or damaged, or another task owns the blob."""
        stored = task.payload if kind == "payload" else task.result
        if stored is None or referred(stored) is None:
            return None if stored is None else value_of(stored)
        key = own_key(stored, task.id, kind)
        if key is None:
            log.error("the %s of task %s refers to %r, which belongs to another task", kind, task.id, referred(stored))
            return None
        blob = await self.get(key)
        if blob is not None and not is_intact(stored, blob.data):  # the response may be damaged, and not the blob
            blob = await self.get(key)
        if blob is not None and not is_intact(stored, blob.data):
            log.error("%s is damaged: its checksum does not match its bytes", key)
            return None
        return None if blob is None else blob.data

    async def get(self, key: str) -> Blob | None:
        return await self._retry(lambda: self._bucket.get(key))

    async def keys(self) -> list[str]:
        async def read() -> list[str]:
            return [key async for key in self._bucket.keys(DATA)]

        return await self._retry(read)

    async def remove(self, keys: Sequence[str]) -> None:
        await in_parallel(lambda key: self._retry(lambda: self._bucket.delete(key)), keys, max_concurrent=MAX_TRANSFERS)

    async def _retry(self, request: Callable[[], Awaitable[Answer]]) -> Answer:
        return await retry(request, at_least=self._retry_timeout)


async def leave_to_repair(cleanup: Awaitable[None]) -> None:
    """Clean up after a call whose answer is known. If a removal fails, `repair` removes the blob later."""
    try:
        await cleanup
    except StorageError as error:
        log.warning("an unused blob could not be removed and stays until the next repair: %s", error)
