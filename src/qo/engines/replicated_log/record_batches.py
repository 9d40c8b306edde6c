"""Writes that need several records: batches that fit into one object each, and the parts of several shards."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from qo.errors import Conflict, ObjectTooLarge, OutcomeUnknown, StorageError

Answer = TypeVar("Answer")
Part = TypeVar("Part")

_MAX_BATCH_TASKS, _MAX_BATCH_BYTES = 4_000, 8 * 1024 * 1024  # of payloads or results in one record


async def write_in_batches(
    sizes: Sequence[int], write: Callable[[Sequence[int]], Awaitable[Sequence[Answer]]]
) -> list[Answer]:
    """Write items of these sizes in batches, one after the other.

    `write` gets the positions of some items, and returns an answer for each.

    A batch that the store refuses because of its size is divided. Raises ObjectTooLarge if nothing is stored because
    one item is too large, and OutcomeUnknown if some of the items are stored, and others are not.
    """
    answers = dict[int, Answer]()
    left = [*_batches(sizes)][::-1]  # the next one is the last
    while left:
        places = left.pop()
        try:
            answers.update(zip(places, await write(places), strict=True))
        except OutcomeUnknown:
            raise
        except (Conflict, StorageError) as error:
            if isinstance(error, ObjectTooLarge) and len(places) > 1:
                largest_written = max((sizes[place] for place in answers), default=-1)
                left += reversed(_divided(places, sizes, largest_written))
            elif answers:
                raise OutcomeUnknown(f"{len(answers)} of {len(sizes)} items are stored, then: {error}") from error
            else:
                raise
    return [answers[place] for place in range(len(sizes))]


def _batches(sizes: Sequence[int]) -> Iterator[Sequence[int]]:
    """The positions of each batch. No batch exceeds the limits unless a single item does."""
    first = total = 0
    for place, size in enumerate(sizes):
        total += size
        if place > first and (place - first >= _MAX_BATCH_TASKS or total > _MAX_BATCH_BYTES):
            yield range(first, place)
            first, total = place, size
    if first < len(sizes):
        yield range(first, len(sizes))


def _divided(places: Sequence[int], sizes: Sequence[int], largest_written: int) -> list[Sequence[int]]:
    """The halves of a refused batch, preceded by its largest item unless a larger one is already stored.

    If the store refuses that item too, nothing has been stored yet. Otherwise it will not refuse any other single item.
    """
    first = list[Sequence[int]]()
    largest = max(places, key=lambda place: sizes[place])
    if sizes[largest] > largest_written:
        first, places = [[largest]], [place for place in places if place != largest]
    middle = len(places) // 2
    return [*first, *filter(None, (places[:middle], places[middle:]))]


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
