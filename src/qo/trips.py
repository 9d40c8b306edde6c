"""Group commit for any engine: while one trip to the store is under way, what others ask for gathers into the next.

An idle queue adds no delay: the first to ask leaves at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar


class _Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=_Named)
Answer = TypeVar("Answer")


class Trips(Generic[Item, Answer]):
    def __init__(self, trip: Callable[[Sequence[Item]], Awaitable[list[Answer]]], *, most: int = 1000) -> None:
        self._trip = trip
        self._most = most
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._under_way: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, answer))
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._travel())
        return await answer

    async def finish(self) -> None:
        """Wait until everyone who asked has an answer."""
        while self._under_way is not None:
            await asyncio.wait([self._under_way])

    async def _travel(self) -> None:
        try:
            while self._waiting:
                await self._one_trip(self._board())
        finally:
            self._under_way = None

    def _board(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """Those who waited longest, each task once: a batch has no order."""
        aboard: dict[str, tuple[Item, asyncio.Future[Answer]]] = {}
        left: list[tuple[Item, asyncio.Future[Answer]]] = []
        for entry in self._waiting:
            if entry[1].done():  # the caller was cancelled before the trip began
                continue
            if len(aboard) < self._most and entry[0].id not in aboard:
                aboard[entry[0].id] = entry
            else:
                left.append(entry)
        self._waiting = left
        return list(aboard.values())

    async def _one_trip(self, aboard: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._trip([item for item, _ in aboard])
        except Exception as error:  # noqa: BLE001 - goes to everyone aboard
            for _, future in aboard:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(aboard, answers, strict=True):
            if not future.done():
                future.set_result(answer)
