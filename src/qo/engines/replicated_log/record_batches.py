"""Batches of tasks and changes that fit into one record each."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

_MAX_BATCH_TASKS, _MAX_BATCH_BYTES = 4_000, 8 * 1024 * 1024  # of payloads or results in one record


def record_batches(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The tasks or changes in parts that fit into one record each."""
    first = size = 0
    for number, item in enumerate(items):
        size += size_of(item)
        if number > first and (number - first >= _MAX_BATCH_TASKS or size > _MAX_BATCH_BYTES):
            yield items[first:number]
            first, size = number, size_of(item)
    if first < len(items):
        yield items[first:]
