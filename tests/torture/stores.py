"""The stores of tests that kill processes, by name: a file, a folder in each layout, and servers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qo.clock import Clock, system_clock
from qo.engines.sqlite import SqliteEngine
from tests.engines.layouts import LAYOUTS
from tests.servers.redis import running
from tests.web.serving import served

FOLDERS = tuple(f"folder-{layout}" for layout in LAYOUTS)
STORES = ("sqlite", "http", "postgres", "redis", *FOLDERS)


@contextmanager
def store_url(name: str, request: pytest.FixtureRequest, folder: Path, *, clock: Clock = system_clock) -> Iterator[str]:
    """The URL of an empty store of this name. `clock` is the clock of a server."""
    if name == "http":
        with served(SqliteEngine(folder / "served.db", clock=clock), clock=clock) as server:
            yield server.url
    elif name == "redis":
        with running("--appendonly", "yes") as redis:
            yield redis.url
    elif name == "postgres":
        yield request.getfixturevalue("postgres_url")
    elif name == "sqlite":
        yield f"sqlite:///{folder}/qo.db"
    else:
        yield f"file://{folder}/bucket?layout={name.removeprefix('folder-')}"
