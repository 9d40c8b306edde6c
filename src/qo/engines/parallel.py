"""Concurrent requests, with an upper bound."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_CONCURRENT_REQUESTS = 64


async def in_parallel(
    work: Callable[[Item], Awaitable[Answer]], items: Sequence[Item], *, max_concurrent: int = MAX_CONCURRENT_REQUESTS
) -> list[Answer]:
    """Return the results in order. All items are tried even if one fails; then the first error is raised."""
    answers: dict[int, Answer] = {}
    errors: list[Exception] = []
    numbered = iter(enumerate(items))

    async def run() -> None:
        for number, item in numbered:
            try:
                answers[number] = await work(item)
            except Exception as error:  # noqa: BLE001 - raised when all items are done
                errors.append(error)

    if len(items) == 1:
        await run()
    else:
        await asyncio.gather(*(run() for _ in range(min(max_concurrent, len(items)))))
    if errors:
        raise errors[0]
    return [answers[number] for number in range(len(items))]
