"""Bulk deletes. Concurrent deletions share a request, which costs hardly more than a single deletion."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from qo.errors import StorageError

_MAX_REQUESTS = 2  # in flight; deletions requested in the meantime go into the next batch
_MAX_KEYS_PER_REQUEST = 1000  # S3's limit
_MAX_REFUSALS = 3  # in a row while single deletions succeed: the store does not support bulk deletes


class _PendingDelete(NamedTuple):
    key: str
    done: "asyncio.Future[None]"


class BulkDelete:
    """Batches deletions. The keys of a failed batch are deleted one by one, so every caller gets its own result."""

    def __init__(
        self, remove: Callable[[str], Awaitable[None]], remove_all: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self._remove, self._remove_all = remove, remove_all
        self._refused = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_PendingDelete] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def remove(self, key: str) -> None:
        if self._refused >= _MAX_REFUSALS:
            await self._remove(key)
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # nothing waits for batches of another loop
            self._loop, self._waiting, self._sending = loop, [], set()
        removal = _PendingDelete(key, loop.create_future())
        self._waiting.append(removal)
        self._send()
        await removal.done

    def _send(self) -> None:
        while self._waiting and len(self._sending) < _MAX_REQUESTS:
            batch, self._waiting = self._waiting[:_MAX_KEYS_PER_REQUEST], self._waiting[_MAX_KEYS_PER_REQUEST:]
            sending = asyncio.ensure_future(self._try(batch))
            self._sending.add(sending)
            sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        self._send()

    async def _try(self, batch: list[_PendingDelete]) -> None:
        try:
            if len(batch) == 1 or not await self._remove_batch(batch):
                await asyncio.gather(*(self._try_alone(removal) for removal in batch))
        finally:
            for removal in batch:
                removal.done.cancel()  # no result: this task was cancelled

    async def _remove_batch(self, batch: list[_PendingDelete]) -> bool:
        try:
            await self._remove_all([removal.key for removal in batch])
        except StorageError:
            self._refused += 1
            return False
        self._refused = 0
        for removal in batch:
            _finish(removal)
        return True

    async def _try_alone(self, removal: _PendingDelete) -> None:
        try:
            await self._remove(removal.key)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._refused = 0  # the error does not come from batching
            _finish(removal, error)
        else:
            _finish(removal)


def _finish(removal: _PendingDelete, error: Exception | None = None) -> None:
    if removal.done.done():  # the caller was cancelled
        return
    if error is None:
        removal.done.set_result(None)
    else:
        removal.done.set_exception(error)
