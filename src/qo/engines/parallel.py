"""Many requests at once, but not too many."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MOST = 64  # requests at once


async def in_parallel(
    work: Callable[[Item], Awaitable[Answer]], items: Sequence[Item], *, most: int = MOST
) -> list[Answer]:
    """The answers in order. One that fails does not keep the others from being tried."""
    answers: dict[int, Answer] = {}
    errors: list[Exception] = []
    numbered = iter(enumerate(items))

    async def run() -> None:
        for number, item in numbered:
            try:
                answers[number] = await work(item)
            except Exception as error:  # noqa: BLE001 - goes to the caller when all are through
                errors.append(error)

    if len(items) == 1:
        await run()
    else:
        await asyncio.gather(*(run() for _ in range(min(most, len(items)))))
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]
