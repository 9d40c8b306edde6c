from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.engines.sqlite import SqliteEngine
from tests.web.serving import Served, served


@pytest.fixture(params=["memory", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return MemoryEngine() if request.param == "memory" else SqliteEngine(tmp_path / "qo.db")


@pytest.fixture
def api(engine: Engine) -> Iterator[Served]:
    """A server over a fresh queue."""
    with served(engine) as made:
        yield made


@pytest.fixture(scope="module")
def one_server() -> Iterator[Served]:
    """One server for all tests of a module that leave nothing behind, over memory: the engine makes no difference."""
    with served(MemoryEngine()) as made:
        yield made
