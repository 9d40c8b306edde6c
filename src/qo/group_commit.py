"""Group commit for any engine: items that arrive while a batch is being written form the next batch.

An idle group adds no delay: the first item is written immediately.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from qo.errors import ObjectTooLarge, is_size_refusal


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Identified)
Answer = TypeVar("Answer")

_MAX_BATCH_SIZE = 1000  # items in one write


class GroupCommit(Generic[Item, Answer]):
    """Writes items of concurrent callers in batches. `write` gets distinct ids and answers each item, in order."""

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Awaitable[list[Answer]]],
        *,
        max_batch_size: int = _MAX_BATCH_SIZE,
        is_repeatable: bool = False,
    ) -> None:
        """`is_repeatable`: an item that may be stored may be written again, as a task with its id."""
        self._write, self._is_repeatable = write, is_repeatable
        self._max_batch_size = max_batch_size
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def commit(self, item: Item) -> Answer:
        """The answer for this item; raises what `write` raised for its batch."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return await answer

    async def finish(self) -> None:
        """Wait until every item has an answer."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                await self._write_batch(self._next_batch())
        finally:
            self._writing = None

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """The items that have waited longest. An id appears once, because a batch has no order."""
        batch: dict[str, tuple[Item, asyncio.Future[Answer]]] = {}
        left: list[tuple[Item, asyncio.Future[Answer]]] = []
        for entry in self._waiting:
            if entry[1].done():  # the caller was cancelled before its item was written
                continue
            if len(batch) < self._max_batch_size and entry[0].id not in batch:
                batch[entry[0].id] = entry
            else:
                left.append(entry)
        self._waiting = left
        return list(batch.values())

    async def _write_batch(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._write([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - goes to every caller of this batch
            if len(batch) > 1 and self._may_divide(error):  # only the callers of items that are too large get it
                middle = len(batch) // 2
                await self._write_batch(batch[:middle])
                await self._write_batch(batch[middle:])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)

    def _may_divide(self, error: Exception) -> bool:
        """Whether to write the halves of a batch that was too large. After an unknown outcome they may be stored."""
        return is_size_refusal(error) if self._is_repeatable else isinstance(error, ObjectTooLarge)
