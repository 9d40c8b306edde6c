"""Splits batches into requests that the server accepts, by number and by size."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from qo import wire
from qo.model import Change, NewTask

Item = TypeVar("Item", NewTask, Change, str)

_TASK_OVERHEAD = 500  # bytes of a task without its payload, approximately


def split(items: Sequence[Item]) -> Iterator[list[Item]]:
    batch: list[Item] = []
    size = 0
    for item in items:
        item_size = _size(item)
        if batch and (size + item_size > wire.BATCH_BYTES or len(batch) == wire.BATCH_ITEMS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item_size
    if batch:
        yield batch


def _size(item: NewTask | Change | str) -> int:
    if isinstance(item, NewTask):
        return _TASK_OVERHEAD + len(item.payload)
    if isinstance(item, Change):
        return _TASK_OVERHEAD + len(item.result or b"") + len(item.error or "")
    return len(item)
