"""Random workflows with failures, lost leases, cancels, replays, additions and dead processes, on every engine.

The engine contract runs a few small ones. Here are larger ones: three on some engines in `make test`, and a hundred on
every engine for each unit of QO_TORTURE. `test_workflow_kills.py` kills real workers.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from qo.bucket import Bucket
from qo.buckets import open_bucket
from qo.buckets.folder import FolderBucket
from qo.client import Client
from qo.engine import Engine
from qo.engines.http import HttpEngine
from qo.engines.http.client import address_of as http_address
from qo.engines.memory import MemoryEngine
from qo.engines.postgres import PostgresEngine
from qo.engines.postgres.address import address_of
from qo.engines.sqlite import SqliteEngine
from qo.ids import new_token
from qo.model import Filter
from qo.testing import ManualClock
from qo.testing.workflow_histories import RecordingEngine, WorkflowHistory
from qo.workflows import GRAPHS
from tests.engines.http_server import Server, server
from tests.engines.layouts import LAYOUTS
from tests.engines.redis_engines import fresh, opened
from tests.servers.process import KEYS, S3Place

SHORT = ("memory", "sqlite", "folder-tasks", "folder-log")
IN_BUCKETS = tuple(f"{bucket}-{layout}" for bucket in ("folder", "s3") for layout in LAYOUTS)
EVERY = ("memory", "sqlite", "postgres", "redis", "http", *IN_BUCKETS)
IS_LONG = bool(os.environ.get("QO_TORTURE"))
HISTORIES = int(os.environ.get("QO_HISTORIES", "0"))  # instead of the number that the scale says


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(params=EVERY if IS_LONG else SHORT)
async def stores(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Engine, RecordingEngine]]:
    """The store of a process, and the store that records what was written."""
    name = request.param
    async with AsyncExitStack() as stack:
        if name == "http":
            record = RecordingEngine(MemoryEngine(clock))
            running: Server = request.getfixturevalue("served")
            await stack.enter_async_context(running.serving(record))
            client = HttpEngine(http_address(running.url))
            await client.open()
            stack.push_async_callback(client.close)
            yield client, record
            return
        if name == "redis":
            made: Engine = await stack.enter_async_context(
                opened(fresh(request.getfixturevalue("redis_server")), clock)
            )
        else:
            made = _engine(name, request, clock, tmp_path, monkeypatch)
            await made.open()
            stack.push_async_callback(made.close)
        record = RecordingEngine(made)
        yield record, record


def _engine(
    name: str, request: pytest.FixtureRequest, clock: ManualClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Engine:
    if name == "memory":
        return MemoryEngine(clock)
    if name == "sqlite":
        return SqliteEngine(folder / "qo.db", clock)
    if name == "postgres":
        return PostgresEngine(address_of(f"{request.getfixturevalue('postgres').url()}?schema=workflows"), clock)
    bucket: Bucket = FolderBucket(folder / "bucket")
    if name.startswith("s3-"):
        for variable, value in KEYS.items():
            monkeypatch.setenv(variable, value)
        place: S3Place = request.getfixturevalue("seaweed")
        bucket = open_bucket(place.url("plain", new_token()), clock=clock)
    return LAYOUTS[name.partition("-")[2]](bucket, clock)


async def test_random_workflows_lose_nothing(
    stores: tuple[Engine, RecordingEngine], clock: ManualClock, scale: int, seed: int
) -> None:
    engine, record = stores
    for number in range(HISTORIES or (100 * scale if IS_LONG else 3)):
        try:
            await WorkflowHistory(engine, clock, seed + number, size=50 if IS_LONG else 20, record=record).run()
            await _clear(Client(engine, clock=clock))
        except AssertionError as error:
            raise AssertionError(f"seed {seed + number}: {error}") from error


async def _clear(client: Client) -> None:
    """Delete all tasks: in some layouts each write costs more, the more tasks there are."""
    tasks = await client.engine.find_without_values(Filter(), limit=1000)
    assert all(await client.engine.delete([task.id for task in tasks]))
    assert await client.engine.notes(GRAPHS) == [], "the graph is deleted with the last task"
