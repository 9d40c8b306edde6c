"""Logs whose tables begin with the current schema, for tests that count records and requests."""

import pytest

from qo.engines.replicated_log import replica
from qo.sqlite_tables.header import VERSION

_WITHOUT_STEPS = ("commits", "compaction", "floor", "replica", "replica_file", "requests", "schema_steps")


@pytest.fixture(autouse=True)
def logs_without_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new log has the first schema, and its first record is a step to the current one."""
    if request.module.__name__.rpartition("test_log_")[2] in _WITHOUT_STEPS:
        monkeypatch.setattr(replica, "FIRST_SCHEMA", VERSION)
