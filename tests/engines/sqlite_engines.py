"""An engine on a SQLite file, for the files that test SQLite: fixtures, its connections and their statements."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from qo.engines.sqlite import SqliteEngine
from qo.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock, tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "qo.db", clock)
    await engine.open()
    yield engine
    await engine.close()


def connection(engine: SqliteEngine, which: int = 0) -> apsw.Connection:
    """The connection of the writer (0), the reader (1) or the watch (2)."""
    return engine.connections[which]


@contextmanager
def statements(db: apsw.Connection) -> Iterator[list[tuple[str, int]]]:
    """The statements that run meanwhile, with the number of virtual machine steps."""
    seen: list[tuple[str, int]] = []

    def note(event: dict[str, Any]) -> None:
        seen.append((event["sql"], event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]))

    db.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
    yield seen
    db.trace_v2(0, None)
