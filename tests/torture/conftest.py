"""Settings of the torture tests: how long each runs, and the seed that repeats a run.

`make test` runs each once, briefly. `make torture` sets QO_TORTURE and runs the same tests for longer.
"""

import os
import random
from pathlib import Path

import pytest

from tests.servers.postgres import url as postgres_url

__all__ = ["postgres_url"]  # a fixture
_TIME_LIMIT = 300.0  # seconds for servers and processes to start on a busy machine, and as many for each unit of scale
_FOLDER = Path(__file__).parent


def _scale() -> int:
    return int(os.environ.get("QO_TORTURE", "1"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    limit = pytest.mark.timeout(_TIME_LIMIT * (1 + _scale()))
    for item in items:  # of the whole run: pytest hands every item to every conftest
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(limit)


@pytest.fixture
def scale() -> int:
    """Multiply rounds, tasks or kills by this. 1 in `make test`."""
    return _scale()


@pytest.fixture
def seed() -> int:
    """The seed of this test. pytest shows the printed line when the test fails; QO_SEED repeats it."""
    chosen = int(os.environ.get("QO_SEED") or random.randrange(2**32))
    print(f"seed {chosen}: repeat with QO_SEED={chosen}")  # noqa: T201 - for people to read
    return chosen
