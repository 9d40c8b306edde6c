"""Images of a log that builds of different versions have written."""

from collections.abc import Callable

import apsw
import pytest

from qo.engines.replicated_log import replica_tables
from qo.engines.replicated_log.frame import FrameFlags
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.engines.replicated_log.schema_steps import encode_step
from qo.model import Filter
from qo.sqlite_tables.header import VERSION
from tests.engines.log_replicas import add, found, open_replica, record_of, temp

__all__ = ["open_replica", "temp"]  # fixtures


def test_an_image_of_a_build_that_did_not_know_a_step_gets_its_indexes(
    open_replica: Callable[..., Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a build adds the columns of the step, and no index."""
    monkeypatch.setattr(replica_tables, "FIRST_SCHEMA", 7)
    first = open_replica()
    while step := first.upgrade():
        flags, version = FrameFlags.SCHEMA_STEP, {"schema": step.number, "schema_since": step.since}
        first.apply(record_of(first, encode_step(step), flags=flags, **version))
    add(first, 0)
    file = ReplicaFile.create()
    position = first.copy_to(file.path)
    db = apsw.Connection(str(file.path))
    db.execute("DROP INDEX tasks_batched")
    db.close()
    loaded = open_replica(file, position)
    assert loaded.schema == VERSION
    assert loaded.read(lambda reader: reader.count("b")) == {}
    assert loaded.read(lambda reader: reader.find(Filter(batch="b"), 9, None, 2.0)) == []
    assert found(loaded) == found(first)
