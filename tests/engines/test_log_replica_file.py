"""The file of a replica: copies, images that are refused, and directories of dead processes."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from qo.engines.replicated_log.record_store import LogPosition
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.errors import NewerFormat, StorageError
from qo.testing.samples import new, task_id
from tests.engines.log_replicas import add, found, open_replica, record_of, replica, rows, temp
from tests.sqlite_tables.replicas import TableCall

__all__ = ["open_replica", "replica", "temp"]  # fixtures

# --- copies and images


def test_a_copy_contains_the_position_at_which_it_was_pinned(
    replica: Replica, open_replica: Callable[..., Replica], temp: Path
) -> None:
    add(replica, *range(50))
    pinned = replica.pin()
    later = add(replica, "later")
    assert replica.prepare([TableCall(lambda table: table.add([new("open")], 1.0))])  # a transaction is open, too
    file = ReplicaFile.create(pinned.size)
    pinned.copy_to(file.path)
    pinned.close()
    replica.roll_back()
    copy = open_replica(file, pinned.position)
    assert found(copy) == set(map(task_id, range(50)))
    copy.apply(later)
    assert rows(copy, temp) == rows(replica, temp)
    assert copy.size >= 4096 and (copy.schema, copy.schema_since) == (replica.schema, replica.schema_since)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DROP TABLE followers", "it has no followers"),
        ("DROP INDEX tasks_ready", "it has no tasks_ready"),
        ("CREATE TRIGGER t AFTER INSERT ON tasks BEGIN DELETE FROM tasks; END", "it has t"),
        ("CREATE VIEW v AS SELECT 1", "it has v"),
        ("CREATE VIRTUAL TABLE f USING fts5(x)", "it has f"),
        ("PRAGMA application_id = 1", "no mark of qo"),
    ],
)
def test_an_image_with_other_tables_is_refused(replica: Replica, change: str, problem: str, temp: Path) -> None:
    file = ReplicaFile.create()
    replica.copy_to(file.path)
    db = apsw.Connection(str(file.path))
    db.execute(change)
    db.close()
    with pytest.raises(StorageError, match=f"log/x/00 does not contain the tables of a log: .*{problem}"):
        Replica("log/x/00", file)
    assert len(list(temp.iterdir())) == 1, "its directory is removed"


@pytest.mark.parametrize("content", [b"", b"no database" * 999])
def test_an_image_that_is_no_database_is_refused(content: bytes) -> None:
    file = ReplicaFile.create()
    file.path.write_bytes(content)
    with pytest.raises(StorageError, match=r"log/x/00"):
        Replica("log/x/00", file)


def test_an_image_of_a_newer_qo_is_refused(replica: Replica) -> None:
    file = ReplicaFile.create()
    replica.copy_to(file.path)
    db = apsw.Connection(str(file.path))
    db.execute("PRAGMA user_version = 99; INSERT INTO formats VALUES (99, 99, '9.9.0')")
    db.close()
    with pytest.raises(NewerFormat, match=r"use qo 9\.9\.0"):
        Replica("log/x/00", file)


# --- the file


def test_the_file_is_private_and_removed(temp: Path) -> None:
    replica = Replica("log/x/00")
    (folder,) = temp.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    replica.close()
    replica.close()
    assert list(temp.iterdir()) == []


KEEPS_A_REPLICA = """
from qo.engines.replicated_log.replica import Replica
replica = Replica("log/x/00")
print("open", flush=True)
input()
"""


def test_directories_of_dead_processes_are_removed_and_others_stay(temp: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KEEPS_A_REPLICA], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"open\n"
        (folder,) = temp.iterdir()
        (temp / "qo-replica-of-another").mkdir()  # without a lock: not known to be abandoned
        Replica("log/x/00").close()
        assert folder.exists(), "its owner is alive"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert folder.exists()
    Replica("log/x/00").close()
    assert [path.name for path in temp.iterdir()] == ["qo-replica-of-another"]


def test_directories_that_were_never_locked_are_removed_when_they_are_old(temp: Path) -> None:
    for name in ("old", "new"):
        (temp / f"qo-new-replica-{name}").mkdir()
    os.utime(temp / "qo-new-replica-old", (1.0, 1.0))
    Replica("log/x/00").close()
    assert [path.name for path in temp.iterdir()] == ["qo-new-replica-new"]


def test_a_process_that_ends_without_closing_removes_its_directory(temp: Path) -> None:
    subprocess.run([sys.executable, "-c", KEEPS_A_REPLICA], input=b"\n", check=True, capture_output=True)
    assert list(temp.iterdir()) == []


def test_a_forked_child_is_refused_and_harms_nothing(replica: Replica) -> None:
    add(replica, 0)
    child = os.fork()
    if child == 0:
        try:
            uses: list[Callable[[], object]] = [
                lambda: add(replica, 1), lambda: found(replica), replica.pin, replica.next_at, replica.roll_back,
            ]  # fmt: skip
            for use in uses:
                with pytest.raises(StorageError, match="before the process forked"):
                    use()
            replica.close()
        except BaseException:  # noqa: BLE001 - the parent gets it
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    add(replica, 2)
    assert found(replica) == {task_id(0), task_id(2)}


def test_a_replica_that_does_not_fit_on_the_disk_is_refused(temp: Path) -> None:
    free = shutil.disk_usage(temp).free
    with pytest.raises(StorageError, match=r"needs \d+ MB of temporary space.*set TMPDIR"):
        ReplicaFile.create(2 * free)
    assert list(temp.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(temp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp / "missing"))
    with pytest.raises(StorageError, match="set TMPDIR"):
        Replica("log/x/00")


def test_a_commit_on_a_full_disk_keeps_the_position(replica: Replica, temp: Path) -> None:
    """The record is in the log, so the replica applies it when there is room again."""
    add(replica, 0)
    call = TableCall(lambda table: table.add([new(n, payload=bytes(9000)) for n in range(1, 40)], 1.0))
    record = record_of(replica, replica.prepare([call]))
    (folder,) = temp.iterdir()
    wal = folder / "replica.sqlite-wal"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096 + wal.stat().st_size, before[1]))
    try:
        with pytest.raises(StorageError):
            replica.commit(LogPosition(2, record.header.id))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert replica.position.seq == 1
    replica.apply(record)
    assert len(found(replica)) == 40
