"""Telling one's own write from another's when the answer was lost."""

import asyncio
from collections.abc import Callable
from typing import Final

from qo.backoff import Backoff
from qo.bucket import ANY, NEW, Blob, Bucket
from qo.errors import Conflict, OutcomeUnknown, Refused, StorageError
from qo.ids import luck

SUPERSEDED: Final = "superseded"  # the version of a write that landed and was replaced since: no store ever gives it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds

IsOurs = Callable[[bytes], bool | None]


async def put_document(
    bucket: Bucket,
    key: str,
    data: bytes,
    *,
    expected: str,
    is_ours: IsOurs,
    patience: float = 30.0,
    chance: Callable[[], float] = luck,
) -> str:
    """Write a document; the answer is the truth.

    Returns its version: the write landed. Raises Conflict: it did not and never will. Raises StorageError: the store
    refuses it, or did not take it for `patience` seconds, and it did not land. Raises OutcomeUnknown: nobody can say;
    it may land later still, and doing the whole operation again, with the same id and nonce, must be harmless.

    What a layout must do:

    - Make the bytes of every write distinct: a fresh random write id in the document (equal bytes have equal ETags).
    - Carry over the last eight write ids from the document it replaces. Another writer may build on our write before we
      read back; its document then still names ours.
    - Give a created document a nonce that no later write changes.
    - Pass `is_ours`, which looks at whatever is stored now and answers: True, our write id (or, for a creation, our
      nonce) is in it; False, it is not, and the document's own `version` number shows that it was not forgotten either
      (it is at most eight past ours); None, it cannot be told (more than eight past ours, or not readable).
    - Never delete a document within an hour of its last write: a create that is still on its way would bring it back.

    If our write landed and someone replaced it since, the version returned is SUPERSEDED: a later write that expects it
    is a Conflict, as it should be.
    """
    attempt = _Attempt(bucket, key, data, expected, is_ours)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=(0.5, 1.0), chance=chance)
    while True:
        try:
            return await attempt.send()
        except _Undecidable:
            raise
        except StorageError as error:
            if isinstance(error, Refused) or loop.time() + backoff.upcoming > deadline:
                raise attempt.last_word(error) from error
        await asyncio.sleep(backoff.next())


class _Undecidable(OutcomeUnknown):
    """Looking again will not help."""


class _Attempt:
    """The same bytes, as often as it takes. In suspect once any of them may have arrived without our knowing."""

    def __init__(self, bucket: Bucket, key: str, data: bytes, expected: str, is_ours: IsOurs) -> None:
        self._bucket, self._key, self._data, self._expected = bucket, key, data, expected
        self._is_ours = is_ours
        self._in_doubt = False

    async def send(self) -> str:
        """The version, or Conflict; StorageError if another try is worth while."""
        version = await self._look() if self._in_doubt else None
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
        version = await self._look()  # an earlier try of ours may have arrived in the meantime
        if version is None:
            raise StorageError(f"{self._key} changes faster than it can be read; try again")
        return version

    async def _look(self) -> str | None:
        """The version if our write landed, None if it has not yet; Conflict if it never will."""
        if self._expected == ANY:
            return None  # what is written over whatever is there is simply written again
        blob = await self._bucket.get(self._key)
        if blob is None and self._expected == NEW:
            return None
        if blob is None:
            raise _Undecidable(f"{self._key} is gone; whether it took our write before, nobody can say")
        if blob.version == self._expected:
            return None
        return blob.version if blob.data == self._data else self._recognise(blob)

    def _recognise(self, blob: Blob) -> str:
        ours = self._is_ours(blob.data)
        if ours is None:
            raise _Undecidable(f"{self._key} has moved on too far to tell whether it took our write")
        if not ours:
            raise Conflict(f"{self._key} was written by someone else")
        return SUPERSEDED

    def last_word(self, error: StorageError) -> StorageError:
        if not self._in_doubt or isinstance(error, OutcomeUnknown):
            return error
        return OutcomeUnknown(f"{self._key} may have been written, and cannot be read back: {error}")
