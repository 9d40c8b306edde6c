from collections.abc import AsyncIterator

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from tests.worker.bench import Bench


@pytest.fixture
async def queue() -> AsyncIterator[Client]:
    async with Client(MemoryEngine()) as queue:
        yield queue


@pytest.fixture
def bench(queue: Client) -> Bench:
    return Bench(queue)
