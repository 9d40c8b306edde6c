from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
async def queue(engine: Engine, clock: ManualClock) -> AsyncIterator[Client]:
    async with Client(engine, clock=clock) as queue:
        yield queue
