from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from qo.engine import Engine
from qo.engines.http import HttpEngine
from qo.engines.http.address import address_of
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from qo.testing import EngineContract, ManualClock
from tests.engines.http_server import Server, server


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server() as running:
        yield running


class TestHttpOverMemory(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, served: Server) -> AsyncIterator[Engine]:
        async with served.serving(MemoryEngine(clock)):
            engine = HttpEngine(address_of(served.url))
            await engine.open()
            yield engine
            await engine.close()


class TestHttpOverSqlite(EngineContract):
    @pytest.fixture
    async def engine(self, clock: ManualClock, served: Server, tmp_path: Path) -> AsyncIterator[Engine]:
        async with served.serving(SqliteEngine(tmp_path / "qo.db", clock)):
            engine = HttpEngine(address_of(served.url))
            await engine.open()
            yield engine
            await engine.close()
