from collections.abc import AsyncIterator

import pytest

from qo.engines.memory import MemoryEngine
from qo.queue import Queue
from tests.worker.bench import Bench


@pytest.fixture
async def queue() -> AsyncIterator[Queue]:
    async with Queue(MemoryEngine()) as queue:
        yield queue


@pytest.fixture
def bench(queue: Queue) -> Bench:
    return Bench(queue)
