"""Requests to a store: repeated after transient errors, and concurrent with an upper bound.

Only requests that are safe to repeat are repeated: reads, deletions and unconditional writes. For compare-and-set
writes see `qo.buckets.own_writes`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from qo.backoff import Backoff
from qo.clock import boot_clock
from qo.errors import Refused, StorageError

Item = TypeVar("Item")
Answer = TypeVar("Answer")

MAX_CONCURRENT_REQUESTS = 64
_MAX_ATTEMPTS = 20
_FIRST_DELAY, _MAX_DELAY = 0.002, 1.0
_OPENING_DEADLINE = 3.0  # the store may be starting
_FIRST_OPENING_DELAY, _MAX_OPENING_DELAY = 0.05, 0.5


async def retry_opening(request: Callable[[], Awaitable[Answer]]) -> Answer:
    """Make the first request to a store, and repeat it for 3 seconds unless the store refuses it."""
    until = boot_clock() + _OPENING_DEADLINE
    backoff = Backoff(_FIRST_OPENING_DELAY, _MAX_OPENING_DELAY, jitter=(0.5, 1.5))
    while True:
        try:
            return await request()
        except Refused:
            raise
        except StorageError:
            if boot_clock() + backoff.upcoming > until:
                raise
            await asyncio.sleep(backoff.next())


async def retry(request: Callable[[], Awaitable[Answer]], *, at_least: float = 0.0) -> Answer:
    """Repeat the request while the store cannot be reached: 20 times, and for at least `at_least` seconds."""
    loop, attempts = asyncio.get_running_loop(), 1
    until, backoff = loop.time() + at_least, Backoff(_FIRST_DELAY, _MAX_DELAY, jitter=(0.0, 1.0))
    while attempts < _MAX_ATTEMPTS or loop.time() < until:
        attempts += 1
        try:
            return await request()
        except Refused:
            raise
        except StorageError:
            await asyncio.sleep(backoff.next())
    return await request()


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
