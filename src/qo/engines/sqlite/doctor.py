"""Examines a file for `qo doctor`. The only write is rolled back."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw

from qo.engines.sqlite.file import check_file, connect, path_of
from qo.errors import StorageError
from qo.model import plural
from qo.reports import Finding
from qo.sqlite_tables.driver_errors import to_qo_error
from qo.sqlite_tables.header import FILE_VERSION
from qo.sqlite_tables.migrations import check_version
from qo.sqlite_tables.statements import SQL

_GIGABYTE = 1 << 30
_MIN_FREE_SPACE = 100 * (1 << 20)  # bytes
_FIRST_FIXED_VERSION = (3, 51, 3)  # before it, resetting the write-ahead log could lose commits
_REMOTE = {"9p", "afs", "cifs", "ceph", "fuse.sshfs", "nfs", "nfs4", "smb3", "smbfs", "vboxsf"}


async def examine(url: str) -> list[Finding]:
    path = path_of(url)
    return await asyncio.to_thread(lambda: list(_examine(path)))


def _examine(path: Path) -> Iterator[Finding]:
    yield check_library(apsw.sqlite_lib_version())
    if path.parent.is_dir():
        yield _space(path)
        yield check_file_system(path, Path("/proc/mounts"))
    try:
        there = check_file(path)
    except StorageError as error:
        yield Finding("file", False, str(error))
        return
    if not there:
        yield Finding("file", False, f"{path} contains no queue yet; check the name, or submit a task to create it")
        return
    yield Finding("file", True, f"{path} is a queue")
    yield from _inside(path)


def _inside(path: Path) -> Iterator[Finding]:
    try:
        db = connect(path, create=False)
        try:
            yield _schema(check_version(db, path))
            yield _journal(db)
            yield _integrity(db, path)
            yield _counts(db)
            yield _states(db)
            yield _writable(db)
        finally:
            db.close()
    except apsw.Error as error:
        yield Finding("database", False, str(to_qo_error(path, error)))
    except StorageError as error:
        yield Finding("database", False, str(error))


def check_library(version: str) -> Finding:
    if tuple(int(part) for part in version.split(".")[:3]) < _FIRST_FIXED_VERSION:
        return Finding("library", False, f"SQLite {version} can lose commits when it resets its log; upgrade apsw")
    return Finding("library", True, f"SQLite {version}")


def _space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    text = f"{free / _GIGABYTE:,.1f} GB are free in {path.parent}"
    if free < _MIN_FREE_SPACE:
        return Finding("disk", False, f"{text}; free some space before tasks are refused")
    return Finding("disk", True if free >= _GIGABYTE else None, text)


def check_file_system(path: Path, mounts: Path) -> Finding:
    """File locks and shared memory, which concurrent processes need, do not work across machines."""
    if not mounts.exists():
        return Finding("file system", True, "not known on this system; make sure that it is a local one")
    rows = [line.split() for line in mounts.read_text("utf-8", "replace").splitlines()]
    places = {row[1].replace("\\040", " "): row[2] for row in rows if len(row) > 2}  # noqa: PLR2004 - device, place, kind
    real = path.parent.resolve()
    place = max((place for place in places if real.is_relative_to(place)), key=len, default="/")
    kind = places.get(place, "unknown")
    if kind in _REMOTE:
        return Finding("file system", None, f"{place} is {kind}, shared over a network; keep the file on a local disk")
    return Finding("file system", True, f"{place} is {kind}")


def _schema(version: int) -> Finding:
    if version > FILE_VERSION:
        return Finding("schema", True, f"version {version} of a newer qo; this one knows {FILE_VERSION} and may use it")
    if version < FILE_VERSION:
        return Finding(
            "schema", None, f"version {version}; it is upgraded to {FILE_VERSION} when qo next opens the file"
        )
    return Finding("schema", True, f"version {version}")


def _journal(db: apsw.Connection) -> Finding:
    mode, level = db.execute("PRAGMA journal_mode").get, db.execute("PRAGMA synchronous").get
    if mode != "wal":
        return Finding("journal", None, f"the journal mode is {mode}; it becomes wal when qo next opens the file")
    return Finding("journal", level == 2, "wal, flushed at every commit")  # noqa: PLR2004 - FULL


def _integrity(db: apsw.Connection, path: Path) -> Finding:
    check = "quick_check" if path.stat().st_size > _GIGABYTE else "integrity_check"
    found = [text for (text,) in db.execute(f"PRAGMA {check}(5)")]
    if found == ["ok"]:
        return Finding("integrity", True, f"{check} found no problems")
    return Finding("integrity", False, f"the file is damaged, restore a backup: {'; '.join(found)}")


def _counts(db: apsw.Connection) -> Finding:
    wrong = db.execute(SQL["wrong_counts"]).get
    if wrong:
        return Finding(
            "counts", False, f"{plural(wrong, 'wrong count')} of tasks; stop all workers and restore a backup"
        )
    return Finding("counts", True, "the counts agree with the tasks")


def _states(db: apsw.Connection) -> Finding:
    """A task that is missing from its index would never be claimed, expired or removed."""
    wrong = db.execute(SQL["wrong_states"]).get
    if db.table_exists("main", "unindexed"):
        wrong += db.execute(SQL["wrong_unindexed"]).get
    if wrong:
        return Finding("states", False, f"{plural(wrong)} missing from the index, so never run; restore a backup")
    return Finding("states", True, "every task is in its index")


def _writable(db: apsw.Connection) -> Finding:
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute("INSERT INTO notes (name, data, version) VALUES ('qo doctor', x'', '') ON CONFLICT DO NOTHING")
    finally:
        db.execute("ROLLBACK")
    return Finding("writing", True, "the file is writable")
