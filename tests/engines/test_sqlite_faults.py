"""Full and failing disks, foreign files, and the findings of `qo doctor`."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest

from qo.engines import examine
from qo.engines.sqlite import SqliteEngine, doctor
from qo.errors import OutcomeUnknown, StorageError
from qo.model import Filter, Status
from qo.sqlite_tables.header import APPLICATION_ID, FILE_VERSION
from qo.testing.samples import claim, new, stored, task_id


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    yield engine
    await engine.close()


async def wrong(path: Path) -> dict[str, str]:
    """The doctor's problems, by name."""
    return {finding.name: finding.detail for finding in await examine(f"sqlite:///{path}") if finding.ok is False}


def names(path: Path) -> list[str]:
    return [found.name for found in path.iterdir()]


# --- full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root; the test below stands in")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def fill(engine: SqliteEngine) -> list[str]:
    """Add tasks until it fails. Returns the acknowledged ids."""
    acknowledged: list[str] = []

    async def add_on_and_on() -> None:
        for n in count():
            added = await engine.add([new(10 * n + m, payload=os.urandom(2_000)) for m in range(10)])
            acknowledged.extend(task for task, _ in added)

    with pytest.raises(StorageError, match="the disk is full and nothing of this call was stored; free some space"):
        await add_on_and_on()
    return acknowledged


async def check_filled(engine: SqliteEngine, acknowledged: list[str]) -> None:
    found = await engine.find(Filter(), limit=100_000)
    assert {task.id for task in found} == set(acknowledged)
    assert sum((await engine.count()).values()) == len(acknowledged) > 100


async def test_a_full_disk_loses_nothing_and_the_engine_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    engine = SqliteEngine(small_disk / "qo.db")
    await engine.open()
    acknowledged = await fill(engine)
    with pytest.raises(StorageError, match="full"):
        await engine.add([new("more", payload=os.urandom(50_000))])
    await check_filled(engine, acknowledged)
    ballast.unlink()
    assert await engine.add([new("more", payload=os.urandom(50_000), type="never seen before")]) == [
        (task_id("more"), True)
    ]
    assert (await stored(engine, "more")).type == "never seen before"
    assert len(await claim(engine, limit=5)) == 5
    await engine.close()
    assert {"integrity", "counts", "states"}.isdisjoint(await wrong(small_disk / "qo.db"))


async def test_a_full_database_loses_nothing_and_the_engine_recovers(engine: SqliteEngine, tmp_path: Path) -> None:
    writing = engine.connections[0]
    writing.execute("PRAGMA max_page_count = 200")
    acknowledged = await fill(engine)
    await check_filled(engine, acknowledged)
    writing.execute("PRAGMA max_page_count = 100000")
    assert await engine.add([new("more", type="never seen before")]) == [(task_id("more"), True)]
    assert len(await claim(engine, limit=5)) == 5
    assert await wrong(tmp_path / "qo.db") == {}


# --- failing disks


class FailingFile(apsw.VFSFile):
    failing = False

    def __init__(self, inherit: str, name: Any, flags: list[int]) -> None:
        super().__init__(inherit, name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        if FailingFile.failing:
            raise apsw.IOError
        super().xSync(flags)


class FailingDisk(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> FailingFile:  # noqa: N802 - SQLite's name
        return FailingFile("unix", name, flags)


async def test_a_commit_that_could_not_be_flushed_is_not_acknowledged(tmp_path: Path) -> None:
    disk = FailingDisk()
    engine = SqliteEngine(tmp_path / "qo.db")
    try:
        await engine.open()
        await engine.add([new("before")])
        FailingFile.failing = True
        with pytest.raises(OutcomeUnknown, match="the disk reported an error; check it, then try again"):
            await engine.add([new("lost", type="also lost")])
        FailingFile.failing = False
        assert await engine.get([task_id("lost")]) == [None]
        assert await engine.add([new("lost", type="another")]) == [(task_id("lost"), True)]
        await engine.add([new("again", type="also lost")])  # the cache was rolled back with the transaction
        assert {task.type for task in await claim(engine)} == {"t", "another", "also lost"}
        assert (await stored(engine, "again")).type == "also lost"
    finally:
        FailingFile.failing = False
        await engine.close()
        disk.unregister()
    assert await wrong(tmp_path / "qo.db") == {}


# --- files that are not ours


def foreign(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (a)")
    db.close()


def foreign_with_log(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute("PRAGMA journal_mode = wal")
    db.close()


def newer(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.execute(
        f"CREATE TABLE tasks (a); PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FILE_VERSION + 1}"
    )
    db.close()


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database at all\n" * 500)


def short(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00 and no more")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (foreign, "another application"),
        (foreign_with_log, "another application"),
        (newer, "newer qo"),
        (garbage, "not a SQLite database"),
        (short, "not a SQLite database"),
    ],
)
async def test_a_file_of_another_application_is_refused_and_not_changed(tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "theirs.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StorageError, match=says):
        await SqliteEngine(path).open()
    assert says in (await wrong(path))["file"]
    assert path.read_bytes() == before
    assert names(tmp_path) == ["theirs.db"]


async def test_an_empty_file_becomes_a_queue(tmp_path: Path) -> None:
    (tmp_path / "qo.db").touch()
    engine = SqliteEngine(tmp_path / "qo.db")
    await engine.open()
    assert await engine.add([new()]) == [(task_id(0), True)]
    await engine.close()
    head = (tmp_path / "qo.db").read_bytes()[:100]
    assert int.from_bytes(head[68:72], "big") == APPLICATION_ID and int.from_bytes(head[60:64], "big") == FILE_VERSION


async def test_paths_that_cannot_be_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is a directory; name a file in it"):
        await SqliteEngine(tmp_path).open()
    with pytest.raises(StorageError, match=r"the directory .*/none is missing; create it"):
        await SqliteEngine(tmp_path / "none" / "qo.db").open()
    with pytest.raises(StorageError, match="cannot be read"):
        await SqliteEngine(tmp_path / ("x" * 300)).open()
    assert names(tmp_path) == []


@pytest.fixture
def nobody() -> Iterator[None]:
    """Run as another user, because root may read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.usefixtures("nobody")
async def test_an_unreadable_file_is_refused() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "qo.db"
        path.touch(0o000)
        with pytest.raises(StorageError, match="check its permissions"):
            await SqliteEngine(path).open()


# --- the doctor


async def test_the_doctor_finds_no_problem_in_a_sound_queue_and_does_not_change_it(
    engine: SqliteEngine, tmp_path: Path
) -> None:
    await engine.add([new(0), new(1, delay=60.0), new(2)])
    await claim(engine, limit=1)
    tasks, notes = await engine.find(Filter(), limit=9), await engine.notes("")
    findings = await examine(f"sqlite:///{tmp_path / 'qo.db'}")
    assert {finding.name for finding in findings} == {
        "library", "disk", "file system", "file", "schema", "journal", "integrity", "counts", "states", "writing",
    }  # fmt: skip
    assert all(finding.ok is not False for finding in findings), findings
    assert (await engine.find(Filter(), limit=9), await engine.notes("")) == (tasks, notes)


async def test_the_doctor_creates_nothing(tmp_path: Path) -> None:
    assert "contains no queue yet" in (await wrong(tmp_path / "qo.db"))["file"]
    assert "is missing" in (await wrong(tmp_path / "none" / "qo.db"))["file"]
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("harm", "name"),
    [
        ("UPDATE tally SET count = count + 1", "counts"),
        ("DELETE FROM tally", "counts"),
        ("UPDATE tasks SET ready = NULL", "states"),
        ("UPDATE tasks SET status = 'completed'", "states"),
    ],
)
async def test_the_doctor_finds_inconsistent_tables(engine: SqliteEngine, tmp_path: Path, harm: str, name: str) -> None:
    await engine.add([new()])
    await engine.close()
    db = apsw.Connection(str(tmp_path / "qo.db"))
    db.execute(harm)
    db.close()
    assert name in await wrong(tmp_path / "qo.db")


async def test_the_doctor_finds_a_damaged_file(engine: SqliteEngine, tmp_path: Path) -> None:
    await engine.add([new(n, payload=bytes(500)) for n in range(200)])
    await engine.close()
    path = tmp_path / "qo.db"
    data = bytearray(path.read_bytes())
    data[5 * 4096 : 12 * 4096] = os.urandom(7 * 4096)
    path.write_bytes(data)
    assert {"integrity", "database"} & (await wrong(path)).keys()


def test_the_doctor_reports_old_libraries_and_remote_disks(tmp_path: Path) -> None:
    assert doctor.check_library("3.51.2").ok is False and doctor.check_library("3.51.3").ok
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} nfs4 rw 0 0\n")
    assert doctor.check_file_system(tmp_path / "qo.db", mounts).ok is None
    assert doctor.check_file_system(Path("/qo.db"), mounts).ok is True


async def test_a_task_of_the_first_schema_matches_the_model(engine: SqliteEngine) -> None:
    await engine.add([new()])
    columns = {row[1] for row in engine.connections[1].execute("PRAGMA table_info(tasks)")}
    task = await stored(engine)
    assert task.status is Status.PENDING
    assert set(task.__struct_fields__) - {"queue", "type", "stored_needs"} == columns - {"n", "lane", "ready"}
