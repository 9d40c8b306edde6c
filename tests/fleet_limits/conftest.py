from collections.abc import AsyncIterator

import pytest

from qo.client import Client
from qo.engines.memory import MemoryEngine
from tests.worker.bench import Bench


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(MemoryEngine()) as client:
        yield client


@pytest.fixture
def bench(client: Client) -> Bench:
    return Bench(client)
