"""A user's storage object with `read` and `write` as a bucket of one object.

Its `write(content, if_match=None)` overwrites unconditionally, so it cannot create an object only if there is none.
Instead, a process that finds no object writes an empty one, waits for `settle` seconds, and then writes the queue over
the version that it reads. Two processes that start at the same time both write an empty object, which is harmless. A
process that is delayed by more than `settle` seconds between its read and its first write could still overwrite the
queue of another. A storage with a `create` method has no such gap, and neither has a bucket (`?layout=one`).
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
_CONTENT_AND_VERSION = 2  # the length of the tuple that `read` returns
_CONFLICT_ERRORS = {"CASConflictError", "Conflict", "ConflictError", "PreconditionFailed"}


def _checked(method: str, answer: Awaitable[T]) -> Awaitable[T]:
    """Raises Refused if the method is not a coroutine function."""
    if not isawaitable(answer):
        raise Refused(f"the storage's {method}() is not awaitable; define it as `async def {method}`")
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
            raise StorageError("the storage returned no content after a write; check its read()")
        return Blob(content, version, self._clock())

    async def _begin(self) -> None:
        await self._write(b"", None)
        await asyncio.sleep(self._settle)

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        self._check(key)
        storage = self._storage
        if expected == NEW and isinstance(storage, CreatingStorage):
            return await self._request("create", lambda: storage.create(data))
        if expected == NEW:
            raise Conflict(f"{key} exists: reading it has created it")
        return await self._write(data, expected)

    def _check(self, key: str) -> None:
        if key != self._key:
            raise StorageError(f"this storage holds one object, {self._key}; there is no {key}")

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
        return await self._request("write", lambda: self._storage.write(data, if_match=expected))

    async def _request(self, method: str, request: Callable[[], Awaitable[str]]) -> str:
        try:
            return await _checked(method, request())
        except QoError:
            raise
        except Exception as error:
            if type(error).__name__ in _CONFLICT_ERRORS:
                raise Conflict("the object was written by another process") from error
            raise OutcomeUnknown(f"the storage did not report whether the write succeeded: {error}") from error

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
