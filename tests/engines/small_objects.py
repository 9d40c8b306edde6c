"""A store that refuses large objects, for tests of the layout `log`."""

import os

from qo.buckets.memory import MemoryBucket
from qo.errors import ObjectTooLarge
from qo.model import NewTask
from tests.engines.log_queue import Queue

LIMIT = 40_000  # bytes


class SmallObjects(MemoryBucket):
    """A store, or a proxy in front of it, that refuses larger objects."""

    refusals = 0

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if len(data) > LIMIT:
            self.refusals += 1
            raise ObjectTooLarge(f"{key} is too large")
        return await super().put(key, data, expected=expected)


def limited(bucket: MemoryBucket) -> SmallObjects:
    """The same objects by a way that refuses large ones."""
    small = SmallObjects(bucket.now)
    small.__dict__ |= bucket.__dict__
    return small


async def small_queue() -> Queue:
    queue = Queue()
    queue.bucket = SmallObjects(queue.clock)
    return await queue.create()


def quarters(queue: Queue, number: int) -> list[NewTask]:
    """Tasks, each with a payload that cannot be compressed, of a quarter of the limit."""
    return [queue.task(payload=os.urandom(LIMIT // 4)) for _ in range(number)]


def too_large(queue: Queue) -> NewTask:
    return queue.task(payload=os.urandom(2 * LIMIT))
