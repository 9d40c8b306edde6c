"""Settings of the torture tests: how long each runs, and the seed that repeats a run.

`make test` runs each once, briefly. `make torture` sets QO_TORTURE and runs the same tests for longer.
"""

import os
import random

import pytest


@pytest.fixture
def scale() -> int:
    """Multiply rounds, tasks or kills by this. 1 in `make test`."""
    return int(os.environ.get("QO_TORTURE", "1"))


@pytest.fixture
def seed() -> int:
    """The seed of this test. pytest shows the printed line when the test fails; QO_SEED repeats it."""
    chosen = int(os.environ.get("QO_SEED") or random.randrange(2**32))
    print(f"seed {chosen}: repeat with QO_SEED={chosen}")  # noqa: T201 - for people to read
    return chosen
