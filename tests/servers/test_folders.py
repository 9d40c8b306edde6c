"""Folders that a killed run has left."""

import os
import tempfile
from pathlib import Path

import pytest

from qo.clock import system_clock
from tests.servers.folders import server_folder


def test_only_folders_of_servers_that_are_older_than_a_day_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, recent = server_folder("redis"), server_folder("redis")
    (left / "log").write_text("left")
    foreign = [tmp_path / "qo-redis-notes", tmp_path / "qo-notes"]
    for path in foreign:
        path.mkdir()
    for path in (left, *foreign):
        os.utime(path, (0, system_clock() - 100_000))
    made = server_folder("redis")
    assert set(tmp_path.iterdir()) == {recent, made, *foreign}
