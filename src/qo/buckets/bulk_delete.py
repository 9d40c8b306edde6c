"""Deletions that meet on the way go together: many keys cost one request, hardly more than one key does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from qo.errors import StorageError

_UNDER_WAY = 2  # requests; what is asked for meanwhile gathers into the next
_MOST = 1000  # keys in one request, as S3 allows
_REFUSALS = 3  # one after the other, though each key by itself could be removed: the store does not know how


class _PendingDelete(NamedTuple):
    key: str
    done: "asyncio.Future[None]"


class BulkDelete:
    """What fails together is tried one by one, so every caller hears of its own key."""

    def __init__(
        self, remove: Callable[[str], Awaitable[None]], remove_all: Callable[[list[str]], Awaitable[None]]
    ) -> None:
        self._remove, self._remove_all = remove, remove_all
        self._refused = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[_PendingDelete] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def remove(self, key: str) -> None:
        if self._refused >= _REFUSALS:
            await self._remove(key)
            return
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what another loop left unfinished has nobody waiting for it
            self._loop, self._waiting, self._sending = loop, [], set()
        removal = _PendingDelete(key, loop.create_future())
        self._waiting.append(removal)
        self._send()
        await removal.done

    def _send(self) -> None:
        while self._waiting and len(self._sending) < _UNDER_WAY:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            sending = asyncio.ensure_future(self._try(batch))
            self._sending.add(sending)
            sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Task[None]") -> None:
        self._sending.discard(sending)
        self._send()

    async def _try(self, batch: list[_PendingDelete]) -> None:
        try:
            if len(batch) == 1 or not await self._went_together(batch):
                await asyncio.gather(*(self._try_alone(removal) for removal in batch))
        finally:
            for removal in batch:
                removal.done.cancel()  # those without an answer: this was cut off

    async def _went_together(self, batch: list[_PendingDelete]) -> bool:
        try:
            await self._remove_all([removal.key for removal in batch])
        except StorageError:
            self._refused += 1
            return False
        self._refused = 0
        for removal in batch:
            _answer(removal)
        return True

    async def _try_alone(self, removal: _PendingDelete) -> None:
        try:
            await self._remove(removal.key)
        except Exception as error:  # noqa: BLE001 - goes to the caller
            self._refused = 0  # it is not about several at once
            _answer(removal, error)
        else:
            _answer(removal)


def _answer(removal: _PendingDelete, error: Exception | None = None) -> None:
    if removal.done.done():  # the caller has left
        return
    if error is None:
        removal.done.set_result(None)
    else:
        removal.done.set_exception(error)
