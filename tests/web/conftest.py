from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.engine import Engine
from qo.engines import open_engine
from qo.engines.memory import MemoryEngine
from tests.web.serving import Served, served


@pytest.fixture(params=["sqlite:///{}/qo.db", "file://{}/bucket?layout=one"], ids=["sqlite", "bucket"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return open_engine(request.param.format(tmp_path))


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
