"""One database in a bucket: its content, foreign objects in its place, and the cost of concurrent calls."""

import asyncio
from pathlib import Path

import apsw
import pytest

from qo.bucket import ANY
from qo.buckets.folder.bucket import FolderBucket
from qo.buckets.memory import CountingBucket, MemoryBucket
from qo.engines import examine
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.errors import StorageError
from qo.model import Filter, Status, complete
from qo.sqlite_tables.header import APPLICATION_ID
from qo.testing import ManualClock
from qo.testing.samples import claim, claim_request, new, stored, task_id

KEY = "queue.sqlite"


async def test_concurrent_reads_share_a_download() -> None:
    bucket = CountingBucket(MemoryBucket())
    engine = SqliteObjectEngine(bucket)
    await asyncio.gather(*(stored_or_none(engine, n) for n in range(50)))
    assert bucket.requests == {"get": 1}


async def stored_or_none(engine: SqliteObjectEngine, n: int) -> None:
    assert await engine.get([task_id(n)]) == [None]


async def test_empty_pages_are_not_sent_with_every_write() -> None:
    bucket, clock = MemoryBucket(), ManualClock()
    engine = SqliteObjectEngine(bucket, clock=clock)
    await engine.add([new(n, payload=bytes(2000)) for n in range(300)])
    full = len(await content(bucket))
    tasks = await claim(engine, limit=300)
    await engine.apply([complete(task) for task in tasks])
    await engine.delete([task.id for task in tasks])
    assert len(await content(bucket)) < full / 4
    await engine.add([new(1)])
    assert (await stored(engine, 1)).status is Status.PENDING


async def content(bucket: MemoryBucket) -> bytes:
    blob = await bucket.get(KEY)
    assert blob is not None
    return blob.data


# --- what lies there already


def database(version: int = 0, application: int = 0) -> bytes:
    db = apsw.Connection(":memory:")
    db.execute(f"CREATE TABLE theirs (a); PRAGMA user_version = {version}; PRAGMA application_id = {application}")
    data = db.serialize("main")
    db.close()
    return data


async def test_a_trigger_in_the_object_runs_in_no_process_that_reads_it() -> None:
    """Every role writes the object. What it stores is data, also for an administrator who opens it."""
    bucket = MemoryBucket()
    await SqliteObjectEngine(bucket).add([new(1)])
    db = apsw.Connection(":memory:")
    db.deserialize("main", await content(bucket))
    db.execute("CREATE TRIGGER forged AFTER INSERT ON tasks BEGIN UPDATE tasks SET payload = x'66'; END")
    await bucket.put(KEY, db.serialize("main"), expected=ANY)
    db.close()
    engine = SqliteObjectEngine(bucket)
    await engine.add([new(2, payload=b"2")])
    assert [(await stored(engine, n)).payload for n in (1, 2)] == [new(1).payload, b"2"]


FOREIGN = {
    "text": (b"junk", "does not hold a queue"),
    "json": (b'{"format":1}' * 20, "does not hold a queue"),
    "another's database": (database(), "another application"),
    "a newer schema": (database(99, APPLICATION_ID), "newer qo"),
    "a cut one": (database(1, APPLICATION_ID)[:-4096], "is damaged"),
    "the header alone": (database(1, APPLICATION_ID)[:100], "is damaged"),
}


@pytest.mark.parametrize("kind", FOREIGN)
async def test_a_foreign_object_is_refused_and_left_alone(kind: str) -> None:
    data, words = FOREIGN[kind]
    bucket = MemoryBucket()
    await bucket.put(KEY, data, expected=ANY)
    engine = SqliteObjectEngine(bucket)
    with pytest.raises(StorageError, match=words):
        await engine.open()
    for _ in range(2):
        with pytest.raises(StorageError, match=words):
            await engine.add([new()])
        with pytest.raises(StorageError, match=words):
            await engine.get([task_id(0)])
    assert await content(bucket) == data


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
async def test_a_damaged_page_is_noticed_at_the_download(at: float) -> None:
    bucket = MemoryBucket()
    engine = SqliteObjectEngine(bucket)
    await engine.add([new(n) for n in range(200)])
    data = bytearray(await content(bucket))
    page = int(len(data) * at) // 4096 * 4096
    data[page : page + 4096] = b"\xa5" * 4096
    await bucket.put(KEY, bytes(data), expected=ANY)
    with pytest.raises(StorageError, match="damaged"):
        await engine.add([new(999)])
    assert await content(bucket) == data


async def test_the_doctor_examines_the_object(tmp_path: Path) -> None:
    url, bucket = f"file://{tmp_path}?layout=sqlite", FolderBucket(tmp_path)
    engine = SqliteObjectEngine(bucket)
    for words, ok, prepare in (
        ("no queue.sqlite yet", True, claim(engine)),
        ("holds 3 tasks", True, engine.add([new(n) for n in range(3)])),
        ("does not hold a queue", False, bucket.put(KEY, b"junk", expected=ANY)),
    ):
        await prepare
        found = [finding for finding in await examine(url) if finding.name == "database"]
        assert [(finding.ok, words in finding.detail) for finding in found] == [(ok, True)]


async def test_a_repaired_store_is_used_again() -> None:
    bucket = MemoryBucket()
    engine = SqliteObjectEngine(bucket)
    await engine.add([new()])
    good = await content(bucket)
    await bucket.put(KEY, b"junk", expected=ANY)
    with pytest.raises(StorageError, match="does not hold a queue"):
        await engine.add([new(1)])
    await bucket.put(KEY, good, expected=ANY)
    await engine.add([new(1)])
    assert len(await engine.find(Filter(), limit=9)) == 2


async def test_a_file_of_the_sqlite_engine_may_be_uploaded_and_the_object_opened_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "qo.db"
    there = SqliteEngine(path)
    await there.open()
    await there.add([new(0)])
    await there.close()  # merges the write-ahead log into the file, whose header still requires one
    assert path.read_bytes()[18:20] == b"\x02\x02"
    bucket = FolderBucket(tmp_path / "bucket")
    await bucket.put(KEY, path.read_bytes(), expected=ANY)
    engine = SqliteObjectEngine(bucket)
    await engine.add([new(1)])
    assert len(await engine.find(Filter(), limit=9)) == 2
    await engine.close()
    blob = await bucket.get(KEY)
    assert blob is not None
    path.write_bytes(blob.data)
    again = SqliteEngine(path)
    await again.open()
    assert len(await claim(again, limit=9)) == 2
    await again.close()


async def test_concurrent_claims_get_a_task_each_under_their_own_leases() -> None:
    """Some requests are alike, so their tasks are selected together; some are not."""
    clock = ManualClock()
    engine = SqliteObjectEngine(MemoryBucket(clock), clock=clock)
    await engine.add([new(n, type="a" if n % 2 else "b") for n in range(12)])
    requests = [claim_request(lease_id=f"l{n}", worker_id=f"w{n}", limit=n % 3, lease=10.0 + n) for n in range(6)]
    requests += [
        claim_request(lease_id="b", types=("b",), limit=2),
        claim_request(lease_id="few", limit=9, per_type_limits={"a": 1, "b": 0}),
    ]
    got = dict(
        zip((each.lease_id for each in requests), await asyncio.gather(*map(engine.claim, requests)), strict=True)
    )
    assert {name: len(tasks) for name, tasks in got.items()} == {
        "l0": 0, "l1": 1, "l2": 2, "l3": 0, "l4": 1, "l5": 2, "b": 2, "few": 1,
    }  # fmt: skip
    for each in requests:
        for task in got[each.lease_id]:
            assert (task.lease_id, task.worker_id, task.attempt) == (each.lease_id, each.worker_id, 1)
            assert (task.lease_expires_at, task.started_at) == (clock.now + each.lease, clock.now)
            assert await engine.get([task.id]) == [task]
            assert [event.status for event in await engine.history(task.id)] == ["pending", "running"]
    assert len({task.id for tasks in got.values() for task in tasks}) == 9
    assert {lane.status: n for lane, n in (await engine.count()).items() if lane.type == "b"}[Status.RUNNING] == sum(
        task.type == "b" for tasks in got.values() for task in tasks
    )
    clock.advance(1)
    assert len(await claim(engine, limit=99)) == 3
