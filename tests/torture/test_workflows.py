"""Random workflows with failures, lost leases, cancels, replays, additions and dead processes, on every engine.

The engine contract runs a few small ones. Here are larger ones: three on some engines in `make test`, and a hundred on
every engine for each unit of QO_TORTURE.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from qo.buckets.folder import FolderBucket
from qo.engine import Engine
from qo.engines.memory import MemoryEngine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.sqlite import SqliteEngine
from qo.testing import ManualClock
from qo.testing.workflow_histories import WorkflowHistory
from tests.engines.layouts import LAYOUTS
from tests.engines.redis_engines import fresh, opened

SHORT = ("memory", "sqlite", "tasks", "log")
EVERY = ("memory", "sqlite", "postgres", "redis", *LAYOUTS)
IS_LONG = bool(os.environ.get("QO_TORTURE"))
SIZE, STEPS = 50, 300  # tasks of the largest workflow, and what happens to each


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=EVERY if IS_LONG else SHORT)
async def engine(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Engine]:
    name = request.param
    async with AsyncExitStack() as stack:
        if name == "redis":
            yield await stack.enter_async_context(opened(fresh(request.getfixturevalue("redis_server")), clock))
            return
        made: Engine
        if name == "memory":
            made = MemoryEngine(clock)
        elif name == "sqlite":
            made = SqliteEngine(tmp_path / "qo.db", clock)
        elif name == "postgres":
            url = request.getfixturevalue("postgres").url()
            made = PostgresEngine(address_of(f"{url}?schema=workflows"), clock)
        else:
            made = LAYOUTS[name](FolderBucket(tmp_path / "bucket"), clock)
        await made.open()
        stack.push_async_callback(made.close)
        yield made


async def test_random_workflows_lose_nothing(engine: Engine, clock: ManualClock, scale: int, seed: int) -> None:
    for number in range(100 * scale if IS_LONG else 3):
        history = WorkflowHistory(engine, clock, seed + number, size=SIZE if IS_LONG else 20)
        await history.run(steps=STEPS if IS_LONG else 80)
