"""Steps of the schema in a log: replicas change their tables at the same position."""

import asyncio
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
from msgspec.structs import replace

from qo.bucket import Blob
from qo.buckets.memory import MemoryBucket
from qo.engines.replicated_log import replica_tables
from qo.engines.replicated_log.engine import ReplicatedLogEngine
from qo.engines.replicated_log.frame import FrameFlags, decode_frame
from qo.engines.replicated_log.log_meta import create_log, read_meta, record_schema
from qo.engines.replicated_log.record_store import LogPosition, LogRecord
from qo.engines.replicated_log.replica import Replica, UnappliableRecord
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.engines.replicated_log.replica_tables import FIRST_SCHEMA
from qo.engines.replicated_log.schema_steps import AddedTable, SchemaStep, encode_step, next_step
from qo.errors import NewerFormat, StorageError
from qo.formats import format_of
from qo.model import Filter, complete
from qo.sqlite_tables.header import LOG_ADDITIVE, VERSION
from qo.sqlite_tables.patchsets import ChangeRecorder, apply_patchset
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow
from qo.sqlite_tables.segment_drafts import new_tables, open_segment
from qo.sqlite_tables.segments import ids_of
from qo.sqlite_tables.table import SqliteTable
from qo.testing.samples import claim_request, new, task_id
from tests.engines.log_replicas import add, found, open_replica, record_of, replica, rows, temp, write
from tests.sqlite_tables.replicas import TableCall

__all__ = ["open_replica", "replica", "temp"]  # fixtures

NEWER = SchemaStep(
    number=VERSION + 1,
    since=VERSION,
    qo="9.9.0",
    columns=(("tasks", "extra", "TEXT", "it's"), ("lanes", "weight", "REAL", 1.5), ("notes", "author", "TEXT", None)),
    tables=(AddedTable(name="later", columns=(("b", "INTEGER"), ("a", "TEXT"), ("c", "BLOB")), key=("a", "b")),),
)


def step_record(replica: Replica, step: SchemaStep) -> LogRecord:
    return record_of(
        replica, encode_step(step), flags=FrameFlags.SCHEMA_STEP, schema=step.number, schema_since=step.since
    )


def execute(replica: Replica, *statements: str) -> LogRecord:
    """Commit what a newer build writes."""

    def work(table: SqliteTable) -> None:
        for statement in statements:
            table.db.execute(statement)

    return write(replica, work)[1]


def test_an_older_build_preserves_what_a_newer_one_adds(
    replica: Replica, open_replica: Callable[..., Replica], temp: Path
) -> None:
    follower = open_replica()
    follower.apply(add(replica, 0, 1))
    step = step_record(replica, NEWER)
    for each in (replica, follower):
        each.apply(step)
        assert (each.schema, each.schema_since) == (VERSION + 1, VERSION)
        assert each.upgrade() is None
    record = execute(
        replica, "UPDATE tasks SET extra = 'kept' WHERE n = 1", "INSERT INTO later (a, b, c) VALUES ('x', 1, x'00')"
    )
    assert record.header.schema == VERSION + 1
    follower.apply(record)
    (first, second), record = write(follower, lambda table: table.claim(claim_request(), 2.0))
    replica.apply(record)
    _, record = write(replica, lambda table: table.apply([complete(first), complete(second)], 3.0))
    follower.apply(record)
    replica.apply(add(follower, 2))
    assert found(follower) == {task_id(0), task_id(1), task_id(2)}
    file = ReplicaFile.create()
    position = follower.copy_to(file.path)
    loaded = open_replica(file, position)
    assert rows(loaded, temp) == rows(replica, temp) == rows(follower, temp)
    assert [row[-1] for row in rows(loaded, temp)["tasks"]] == ["kept", "it's", "it's"]
    record = execute(replica, "DELETE FROM later WHERE a = 'x'")
    loaded.apply(record)
    assert loaded.schema == VERSION + 1


def test_a_build_that_a_step_excludes_refuses_it_and_changes_nothing(replica: Replica) -> None:
    add(replica, 0)
    with pytest.raises(NewerFormat, match=r"use qo 9\.9\.0 or newer"):
        replica.apply(step_record(replica, replace(NEWER, since=VERSION + 1)))
    assert (replica.schema, replica.position.seq) == (VERSION, 1)
    add(replica, 1)


def test_tasks_of_a_newer_schema_are_not_set_aside(replica: Replica) -> None:
    add(replica, 0)
    replica.apply(step_record(replica, NEWER))
    call = TableCall(lambda table: table.set_aside([BadRow(1, task_id(0), "unknown status")]))
    assert replica.prepare([call]) == b""
    assert isinstance(call.error, StorageError) and "newer qo" in str(call.error)


@pytest.mark.parametrize(
    "step",
    [
        replace(NEWER, number=VERSION),
        replace(NEWER, number=VERSION + 2),
        replace(NEWER, columns=(("tasks", 'x" TEXT; DROP TABLE tasks; --', "TEXT", None),)),
        replace(NEWER, columns=(("tasks", "x", "TEXT CHECK (load_extension('x'))", None),)),
        replace(NEWER, columns=(("sqlite_schema", "x", "TEXT", None),)),
        replace(NEWER, columns=(("nowhere", "x", "TEXT", None),)),
        replace(NEWER, tables=(AddedTable(name="tasks", columns=(("a", "TEXT"),), key=("a",)),)),
    ],
)
def test_a_step_that_does_not_fit_is_refused_and_changes_nothing(step: SchemaStep, replica: Replica) -> None:
    add(replica, 0)
    with pytest.raises(UnappliableRecord):
        replica.apply(step_record(replica, step))
    assert (replica.schema, replica.position.seq) == (VERSION, 1)
    replica.apply(step_record(replica, NEWER))
    assert found(replica) == {task_id(0)}


def test_a_step_that_is_no_json_is_refused(replica: Replica) -> None:
    with pytest.raises(UnappliableRecord, match="cannot be read"):
        replica.apply(step_record(replica, NEWER)._replace(patchset=b"{"))


def test_a_newer_build_migrates_an_older_log_step_by_step(
    open_replica: Callable[..., Replica], temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_tables, "FIRST_SCHEMA", 5)
    first, second = open_replica(), open_replica()
    numbers = []
    while step := first.upgrade():
        numbers.append(step.number)
        record = step_record(first, step)
        for each in (first, second):
            each.apply(record)
    assert numbers == list(range(6, VERSION + 1)) and first.upgrade() is None
    second.apply(add(first, 0))
    first.apply(write(second, lambda table: table.claim(claim_request(), 2.0))[1])
    assert rows(first, temp) == rows(second, temp)


def test_the_step_of_a_migration_lists_what_older_builds_must_add(monkeypatch: pytest.MonkeyPatch) -> None:
    step = next_step(6)
    assert step is not None and (step.number, step.since) == (7, 6)
    assert step.columns == (("tasks", "failure_kind", "TEXT", None), ("tasks", "archived_from", "TEXT", None))
    breaking = next_step(5)
    assert breaking is not None and (breaking.since, breaking.columns, breaking.tables) == (6, (), ())
    monkeypatch.setattr("qo.engines.replicated_log.schema_steps.LOG_ADDITIVE", frozenset({5, 6, 7}))
    lanes = next_step(5)
    assert lanes is not None and lanes.columns == (("lanes", "changed", "INTEGER", 0),)
    followers = next_step(4)
    assert followers is not None
    assert followers.tables == (
        AddedTable(name="followers", columns=(("first", "TEXT"), ("last", "TEXT")), key=("first",)),
    )


def test_no_additive_migration_changes_rows() -> None:
    """An older build only adds columns and tables, so its rows would differ from those of a build that migrates."""
    for number in LOG_ADDITIVE & {*range(FIRST_SCHEMA + 1, VERSION + 1)}:
        sql = files("qo.sqlite_tables").joinpath("schema", f"{number:04}.sql").read_text("utf-8").upper()
        assert not any(word in sql for word in ("UPDATE ", "INSERT ", "DELETE ", "REPLACE ", "DROP ")), number


def test_positions_continue_after_a_step(replica: Replica) -> None:
    add(replica, 0)
    record = step_record(replica, NEWER)
    replica.apply(record)
    assert replica.position == LogPosition(2, record.header.id)


@pytest.mark.parametrize("fails", [False, True])
async def test_engines_of_a_newer_build_upgrade_a_log_together(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    monkeypatch.setattr(replica_tables, "FIRST_SCHEMA", 5)
    bucket = MemoryBucket()
    engines = [ReplicatedLogEngine(bucket) for _ in range(3)]
    if fails:  # the process ends after the meta object was changed, before its step is a record
        meta = await create_log(bucket, 1, 1.0)
        step = next_step(5)
        assert step is not None
        await record_schema(bucket, step)
        assert (await read_meta(bucket) or meta).schema == step.number
    await asyncio.gather(*(engine.add([new(n)]) for n, engine in enumerate(engines)))
    for engine in engines:
        assert len(await engine.find(Filter(), limit=9)) == 3
        await engine.close()
    keys = [key async for key in bucket.keys("log/") if "/records/" in key]
    frames = [decode_frame(key, (await bucket.get(key) or Blob(b"", "", 0.0)).data) for key in keys]
    steps = [header.schema for header, _ in frames if FrameFlags.SCHEMA_STEP in header.flags]
    assert steps == list(range(6, VERSION + 1)), "each step is one record"
    found = await read_meta(bucket)
    assert found is not None and (found.schema, found.schema_since) == (
        VERSION,
        format_of(VERSION, additive=LOG_ADDITIVE).since,
    )


def test_an_older_build_writes_no_segments(replica: Replica) -> None:
    add(replica, 1, 2)
    assert replica.draft_segment(lambda _: [1, 2]) is not None
    replica.apply(step_record(replica, NEWER))
    assert replica.draft_segment(lambda _: [1, 2]) is None


def test_an_older_build_reads_the_segments_of_a_newer_one(replica: Replica) -> None:
    add(replica, 1, 2)
    draft = replica.draft_segment(lambda _: [1, 2])
    assert draft is not None
    newer = new_tables()
    for table, column in (("lanes", "weight"), ("tasks", "extra")):
        newer.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
    recorder = ChangeRecorder(newer)
    recorder.start()
    with newer:
        apply_patchset(newer, draft.body)
    body = recorder.take()
    assert ids_of(body) == [task_id(1), task_id(2)]
    newer.close()
    found = SqliteReader(open_segment(body)).get([task_id(1), task_id(2)])
    assert [task and task.id for task in found] == [task_id(1), task_id(2)]
