from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.client import Client
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.ids import new_token
from tests.engines.http_server import server
from tests.worker.bench import Bench


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(MemoryEngine()) as client:
        yield client


@pytest.fixture(params=["sqlite", "redis", "postgres", "http"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an empty store."""
    name = f"t{new_token()[:12]}"
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/qo.db"
    elif request.param == "redis":
        yield f"{request.getfixturevalue('redis_server').url}?prefix={name}"
    elif request.param == "postgres":
        yield f"{request.getfixturevalue('postgres').url()}?schema={name}"
    else:
        with server() as running:
            async with running.serving(open_engine(f"sqlite:///{tmp_path}/qo.db")):
                yield running.url


@pytest.fixture
def bench(client: Client) -> Bench:
    return Bench(client)
