"""Replicas of a log in a directory of the test, and their records without a bucket."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from qo.engines.replicated_log.frame import FrameHeader
from qo.engines.replicated_log.keys import FrameKind
from qo.engines.replicated_log.record_store import START, LogPosition, LogRecord
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.ids import new_token
from qo.model import Filter
from qo.sqlite_tables.patchsets import RECORDED
from qo.sqlite_tables.table import SqliteTable
from qo.testing.samples import new
from tests.sqlite_tables.replicas import TableCall

Answer = TypeVar("Answer")


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def open_replica() -> Iterator[Callable[..., Replica]]:
    replicas = []

    def opened(file: ReplicaFile | None = None, position: LogPosition = START) -> Replica:
        replicas.append(Replica("log/x/00", file, position))
        return replicas[-1]

    yield opened
    for replica in replicas:
        replica.close()


@pytest.fixture
def replica(open_replica: Callable[..., Replica]) -> Replica:
    return open_replica()


def record_of(replica: Replica, patchset: bytes, **fields: Any) -> LogRecord:
    """The record of a prepared transaction."""
    seq, own_id = replica.position.seq + 1, new_token()
    header = FrameHeader(
        FrameKind.RECORD, 0, seq, seq, own_id, replica.position.id, own_id,
        schema=replica.schema, schema_since=replica.schema_since, flags=replica.flags,
    )  # fmt: skip
    return LogRecord(header._replace(**fields), patchset)


def write(replica: Replica, work: Callable[[SqliteTable], Answer]) -> tuple[Answer, LogRecord]:
    """Commit one call, as if its record had been stored."""
    call = TableCall(work)
    record = record_of(replica, replica.prepare([call]))
    if record.patchset:
        replica.commit(LogPosition(record.header.last, record.header.id))
    if call.error is not None:
        raise call.error
    return call.answer, record


def add(replica: Replica, *names: int | str) -> LogRecord:
    return write(replica, lambda table: table.add([new(name) for name in names], 1.0))[1]


def found(replica: Replica) -> set[str]:
    return {task.id for task in replica.read(lambda reader: reader.find(Filter(), 99, None, 1.0))}


def rows(replica: Replica, temp: Path) -> dict[str, list[tuple[Any, ...]]]:
    path = temp / new_token()
    replica.copy_to(path)
    db = apsw.Connection(str(path))
    try:
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in RECORDED}
    finally:
        db.close()
        path.unlink()
