from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qo.client import Client
from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from qo.testing import ManualClock
from tests.engines.http_server import Server, server
from tests.web import serving
from tests.web.serving import STORES, Served


@pytest.fixture
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """SQLite, or what a test asks for with EVERY_STORE. The contract of engines makes sure that they are alike."""
    return open_engine(STORES[getattr(request, "param", "sqlite")].format(tmp_path))


@pytest.fixture
def api(engine: Engine) -> Iterator[Served]:
    """A server over a fresh queue."""
    with serving.served(engine) as made:
        yield made


@pytest.fixture(scope="module")
def one_server() -> Iterator[Served]:
    """One server for all tests of a module that leave nothing behind, over memory: the engine makes no difference."""
    with serving.served(MemoryEngine()) as made:
        yield made


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    """The routers for workers and metrics alone, over what `queue` puts in."""
    with server() as running:
        yield running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client(served: Server, clock: ManualClock) -> AsyncIterator[Client]:
    async with served.serving(MemoryEngine(clock), clock) as client:
        served.app.state["clock"] = served.app.state["elapsed"] = clock
        yield client
