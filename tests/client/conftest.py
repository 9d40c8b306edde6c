from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qo.app import App
from qo.client import Client
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from qo.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Engine:
    return MemoryEngine(clock) if request.param == "memory" else SqliteEngine(tmp_path / "qo.db", clock)


@pytest.fixture
async def client(engine: Engine, clock: ManualClock) -> AsyncIterator[Client]:
    async with Client(engine, clock=clock) as client:
        yield client


@pytest.fixture(params=["memory", "sqlite"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[App]:
    app = App("memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'qo.db'}")
    yield app
    app.close()
