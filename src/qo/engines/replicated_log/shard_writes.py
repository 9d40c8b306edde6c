"""Writes to several shards at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from qo.errors import OutcomeUnknown, StorageError

Part = TypeVar("Part")
Answer = TypeVar("Answer")


async def write_each(parts: Mapping[int, Part], write: Callable[[int, Part], Awaitable[Answer]]) -> dict[int, Answer]:
    """Write the part of each shard. Raises OutcomeUnknown if some of them are stored, and others are not."""
    if len(parts) == 1:
        return {number: await write(number, part) for number, part in parts.items()}
    results = await asyncio.gather(*(write(*part) for part in parts.items()), return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    for error in failed:
        if isinstance(error, OutcomeUnknown) or not isinstance(error, StorageError):
            raise error
    if failed and len(failed) < len(parts):
        raise OutcomeUnknown(
            f"the parts of {len(parts) - len(failed)} of {len(parts)} shards are stored, then: {failed[0]}"
        ) from failed[0]
    if failed:
        raise failed[0]
    return {
        number: result for number, result in zip(parts, results, strict=True) if not isinstance(result, BaseException)
    }
