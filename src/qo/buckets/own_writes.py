"""Conditional writes whose response was lost: distinguishes the caller's own write from another writer's."""

import asyncio
from collections.abc import Callable
from typing import Final

from qo.backoff import Backoff
from qo.bucket import ANY, NEW, Blob, Bucket
from qo.errors import Conflict, OutcomeUnknown, Refused, StorageError
from qo.ids import random_fraction

SUPERSEDED: Final = "superseded"  # the version of a write that was applied and then replaced; no store uses this value
_FIRST_DELAY, _MAX_DELAY = 0.05, 2.0

IsOurs = Callable[[bytes], bool | None]


async def put_document(
    bucket: Bucket,
    key: str,
    data: bytes,
    *,
    expected: str,
    is_ours: IsOurs,
    retry_timeout: float = 30.0,
    random: Callable[[], float] = random_fraction,
) -> str:
    """Write a document and return its version once the write is known to be stored.

    Raises Conflict: the write was not applied and never will be. Raises StorageError: the store refuses the write, or
    did not accept it for `retry_timeout` seconds, and it was not applied. Raises OutcomeUnknown: the write may have
    been applied or may still be; the caller must be able to repeat the whole operation with the same id and nonce.

    A layout must:

    - Make the bytes of every write distinct, with a fresh random write id in the document (equal bytes have equal
      ETags).
    - Carry over the last eight write ids from the document it replaces. Another writer may build on this write before
      it is read back; its document then still contains the write id.
    - Give a created document a nonce that no later write changes.
    - Pass `is_ours`, which examines the stored document and returns: True, it contains this write's id (or, for a
      creation, its nonce); False, it does not, and the document's `version` number shows that the id was not dropped
      either (it is at most eight past this write's); None, unknown (more than eight past, or not readable).
    - Not delete a document within an hour of its last write: a delayed creation would bring it back.

    If the write was applied and has been replaced since, the returned version is SUPERSEDED: a later write that expects
    it raises Conflict.
    """
    attempt = _Attempt(bucket, key, data, expected, is_ours)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + retry_timeout
    backoff = Backoff(_FIRST_DELAY, _MAX_DELAY, jitter=(0.5, 1.0), random=random)
    while True:
        try:
            return await attempt.send()
        except _Undecidable:
            raise
        except StorageError as error:
            if isinstance(error, Refused) or loop.time() + backoff.upcoming > deadline:
                raise attempt.final_error(error) from error
        await asyncio.sleep(backoff.next())


class _Undecidable(OutcomeUnknown):
    """Another attempt cannot decide it."""


class _Attempt:
    """Sends the same bytes repeatedly. The write is in doubt once an attempt may have arrived unanswered."""

    def __init__(self, bucket: Bucket, key: str, data: bytes, expected: str, is_ours: IsOurs) -> None:
        self._bucket, self._key, self._data, self._expected = bucket, key, data, expected
        self._is_ours = is_ours
        self._in_doubt = False

    async def send(self) -> str:
        """Return the version or raise Conflict. Raises StorageError if another attempt may succeed."""
        version = await self._read_back() if self._in_doubt else None
        if version is not None:
            return version
        try:
            return await self._bucket.put(self._key, self._data, expected=self._expected)
        except OutcomeUnknown:
            self._in_doubt = True
            raise
        except Conflict:
            if not self._in_doubt:
                raise
        version = await self._read_back()  # an earlier attempt may have been applied in the meantime
        if version is None:
            raise StorageError(f"{self._key} changes faster than it can be read; try again")
        return version

    async def _read_back(self) -> str | None:
        """The version if the write was applied, None if it was not yet. Raises Conflict if it never will be."""
        if self._expected == ANY:
            return None  # an unconditional write can simply be repeated
        blob = await self._bucket.get(self._key)
        if blob is None and self._expected == NEW:
            return None
        if blob is None:
            raise _Undecidable(f"{self._key} is gone; whether it had received this write is unknown")
        if blob.version == self._expected:
            return None
        return blob.version if blob.data == self._data else self._recognise(blob)

    def _recognise(self, blob: Blob) -> str:
        ours = self._is_ours(blob.data)
        if ours is None:
            raise _Undecidable(f"{self._key} has changed too often to determine whether it received this write")
        if not ours:
            raise Conflict(f"{self._key} was written by another process")
        return SUPERSEDED

    def final_error(self, error: StorageError) -> StorageError:
        if not self._in_doubt or isinstance(error, OutcomeUnknown):
            return error
        return OutcomeUnknown(f"{self._key} may have been written, and cannot be read back: {error}")
