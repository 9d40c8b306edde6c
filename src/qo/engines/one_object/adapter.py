"""Any object with `read` and `write` as a bucket of one object: storage adapters of one's own.

Their `write(content, if_match=None)` overwrites whatever is there, so that interface cannot say "only if there is
nothing". The first write is guarded as well as it allows: when there is nothing, an empty object is put there and left
alone for `settle` seconds, and only then the queue is written, over that version. Two processes that begin at the same
time both put an empty object, which hurts nobody; one that is delayed by more than `settle` between its look and its
write could still wipe out what the other has done. A storage that has `create` too has no such gap, and neither has a
bucket (`?layout=one`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeVar

from qo.bucket import NEW, Blob
from qo.clock import Clock, system_clock
from qo.engines.one_object.engine import KEY
from qo.errors import Conflict, OutcomeUnknown, QoError, Refused, StorageError
from qo.storages import CreatingStorage, ObjectStorage

T = TypeVar("T")
_CONTENT_AND_VERSION = 2  # what a read returns
_LOST_RACES = {"CASConflictError", "Conflict", "ConflictError", "PreconditionFailed"}


def _checked(method: str, answer: Awaitable[T]) -> Awaitable[T]:
    """Raises Refused for the answer of a method that is no coroutine."""
    if not isawaitable(answer):
        raise Refused(f"the storage's {method}() does not wait: define it as `async def {method}`")
    return answer


class StorageBucket:
    may_be_empty = True  # before the first write there is no object, or an empty one

    def __init__(
        self, storage: ObjectStorage, *, key: str = KEY, settle: float = 1.0, clock: Clock = system_clock
    ) -> None:
        self._storage, self._key, self._settle, self._clock = storage, key, settle, clock

    async def get(self, key: str) -> Blob | None:
        self._check(key)
        content, version = await self._read()
        if version is None and isinstance(self._storage, CreatingStorage):
            return None
        if version is None:
            await self._begin()
            content, version = await self._read()
        if version is None:
            raise StorageError("the storage forgot what was written to it")
        return Blob(content, version, self._clock())

    async def _begin(self) -> None:
        await self._write(b"", None)
        await asyncio.sleep(self._settle)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self._check(key)
        storage = self._storage
        if expected == NEW and isinstance(storage, CreatingStorage):
            return await self._ask("create", lambda: storage.create(data))
        if expected == NEW:
            raise Conflict(f"{key} is there: reading it has put it there")
        return await self._write(data, expected)

    def _check(self, key: str) -> None:
        if key != self._key:
            raise StorageError(f"this storage holds one object, {self._key}, and no {key}")

    async def _read(self) -> tuple[bytes, str | None]:
        try:
            answer: Any = await _checked("read", self._storage.read())
        except QoError:
            raise
        except Exception as error:
            raise StorageError(f"the storage could not be read: {error}") from error
        if not isinstance(answer, tuple) or len(answer) != _CONTENT_AND_VERSION:
            raise Refused(f"the storage's read() must return the content and its version, not {answer!r:.40}")
        content, version = answer
        return content, version

    async def _write(self, data: bytes, expected: str | None) -> str:
        return await self._ask("write", lambda: self._storage.write(data, if_match=expected))

    async def _ask(self, method: str, request: Callable[[], Awaitable[str]]) -> str:
        try:
            return await _checked(method, request())
        except QoError:
            raise
        except Exception as error:
            if type(error).__name__ in _LOST_RACES:
                raise Conflict("the object was written by someone else") from error
            raise OutcomeUnknown(f"the storage did not say whether it took the write: {error}") from error

    async def delete(self, key: str) -> None:
        raise StorageError(f"{key} cannot be removed through this storage")

    async def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:  # noqa: ARG002
        nothing: tuple[str, ...] = ()
        for key in nothing:
            yield key

    async def versions(self, key: str) -> list[Blob]:
        blob = await self.get(key)
        return [blob] if blob else []

    def now(self) -> float:
        return self._clock()
