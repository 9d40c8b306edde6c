"""Stores as a build with the next format leaves them: its format number, and an unknown field in every record."""

import json
from abc import ABC, abstractmethod
from importlib.resources import files
from typing import Any

import apsw
import psycopg
from redis import Redis

from qo.bucket import ANY, Blob, Bucket
from qo.buckets import open_bucket
from qo.engine import Engine
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.object_per_task import layout as per_task
from qo.engines.one_object import record as one_object
from qo.engines.postgres.statements import VERSION as POSTGRES_VERSION
from qo.engines.redis.scripts import FORMAT
from qo.engines.redis.task_fields import Description
from qo.engines.replicated_log.engine import FORMAT_CHECK_INTERVAL, ReplicatedLogEngine
from qo.engines.replicated_log.frame import FrameFlags, FrameHeader
from qo.engines.replicated_log.keys import META, NO_ID, FrameKind
from qo.engines.replicated_log.log_meta import append_step
from qo.engines.replicated_log.record_store import LogPosition, LogRecord, RecordStore
from qo.engines.replicated_log.replica_tables import FIRST_SCHEMA
from qo.engines.replicated_log.schema_steps import SchemaStep
from qo.ids import new_token
from qo.sqlite_tables.header import FILE_VERSION, VERSION
from qo.sqlite_tables.migrations import migrate
from tests.engines.below import below

QO = "9.9.0"  # the version of that build


class NewerBuild(ABC):
    """The store is changed without the engine."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    async def upgrade(self, *, is_additive: bool) -> None: ...

    def forget_checks(self, engine: Engine) -> None:  # noqa: B027 - most stores check with every write
        """Make a store that checks the format now and then check it at the next write."""

    @abstractmethod
    async def unknown(self) -> list[Any]:
        """The values of the unknown fields, one for each record with such a field."""


_DESCRIPTION = len(Description.__struct_fields__)
_COLUMNS = ("tasks", "events", "lanes", "tally", "notes")


class NewerSqlite(NewerBuild):
    async def upgrade(self, *, is_additive: bool) -> None:
        db = apsw.Connection(self.url.removeprefix("sqlite:///"))
        db.set_busy_timeout(30_000)  # milliseconds: workers may hold the write lock
        self.change(db, is_additive=is_additive)
        db.close()

    @staticmethod
    def change(db: apsw.Connection, *, is_additive: bool) -> None:
        with db:
            for table in _COLUMNS:
                db.execute(f"ALTER TABLE {table} ADD COLUMN extra TEXT NOT NULL DEFAULT 'x'")
                db.execute(f"UPDATE {table} SET extra = 'kept'")
            since = FILE_VERSION if is_additive else FILE_VERSION + 1
            db.execute("INSERT INTO formats (number, since, qo) VALUES (?, ?, ?)", (FILE_VERSION + 1, since, QO))
            db.execute(f"PRAGMA user_version = {FILE_VERSION + 1}")

    async def unknown(self) -> list[Any]:
        db = apsw.Connection(self.url.removeprefix("sqlite:///"))
        found = self.kept(db)
        db.close()
        return found

    @staticmethod
    def kept(db: apsw.Connection) -> list[Any]:
        return [value for (value,) in db.execute("SELECT extra FROM tasks WHERE extra = 'kept'")]


class NewerPostgres(NewerBuild):
    async def upgrade(self, *, is_additive: bool) -> None:
        with psycopg.connect(self._place) as db:
            for table in (*_COLUMNS, "ready", "coming", "leases"):
                db.execute(f"ALTER TABLE test.{table} ADD extra text NOT NULL DEFAULT 'x'")
                db.execute(f"UPDATE test.{table} SET extra = 'kept'")
            number = POSTGRES_VERSION + 1
            since = POSTGRES_VERSION if is_additive else number
            db.execute("INSERT INTO test.schema_version (version, since, qo) VALUES (%s, %s, %s)", (number, since, QO))

    async def unknown(self) -> list[Any]:
        with psycopg.connect(self._place) as db:
            return db.execute("SELECT extra FROM test.tasks WHERE extra = 'kept'").fetchall()

    @property
    def _place(self) -> str:
        return self.url.partition("?")[0]


class NewerRedis(NewerBuild):
    async def upgrade(self, *, is_additive: bool) -> None:
        with self._client() as client:
            for key in client.scan_iter("{qo}:task:*"):
                description = [*json.loads(client.hget(key, "d")), None][:_DESCRIPTION]
                client.hset(key, mapping={"x": "kept", "hx": "kept", "d": json.dumps([*description, "kept"])})
            since = FORMAT if is_additive else FORMAT + 1
            client.hset("{qo}:format", mapping={"format": FORMAT + 1, "since": since, "qo": QO, "extra": "kept"})

    async def unknown(self) -> list[Any]:
        with self._client() as client:
            return [client.hget(key, "x") for key in client.scan_iter("{qo}:task:*") if client.hexists(key, "x")]

    def _client(self) -> Redis:
        return Redis.from_url(self.url)


class NewerTasks(NewerBuild):
    def forget_checks(self, engine: Engine) -> None:
        store = below(engine)
        assert isinstance(store, ObjectPerTaskEngine)
        store._format.checked_at -= per_task.CHECK_INTERVAL

    async def upgrade(self, *, is_additive: bool) -> None:
        bucket = open_bucket(self.url.partition("?")[0])
        async for key in bucket.keys("tasks/"):
            document = await _json(bucket, key)
            document |= {"extra": "kept"}
            document["task"] |= {"extra": ["kept", 1.5]}
            document["task"]["retry"] |= {"extra": "kept"}
            document["events"] = [event | {"extra": "kept"} for event in document["events"]]
            await bucket.put(key, json.dumps(document).encode(), expected=ANY)
        since = per_task.FORMAT if is_additive else per_task.FORMAT + 1
        told = {"format": per_task.FORMAT + 1, "since": since, "qo": QO, "extra": "kept"}
        await bucket.put("format.json", json.dumps(told).encode(), expected=ANY)

    async def unknown(self) -> list[Any]:
        bucket = open_bucket(self.url.partition("?")[0])
        documents = [await _json(bucket, key) async for key in bucket.keys("tasks/")]
        return [document for document in documents if not document.get("tombstone") and _is_kept(document)]


class NewerOne(NewerBuild):
    async def upgrade(self, *, is_additive: bool) -> None:
        bucket = open_bucket(self.url.partition("?")[0])
        queue = await _json(bucket, "queue.json")
        for record in queue["tasks"]:
            record |= {"extra": "kept"}
            record["task"] |= {"extra": ["kept", 1.5]}
            record["task"]["retry"] = {"extra": "kept"}
            record["events"] = [[*event, "kept"] for event in record["events"]]
        queue["notes"] = [note | {"extra": "kept"} for note in queue["notes"]]
        since = one_object.FORMAT if is_additive else one_object.FORMAT + 1
        queue |= {"format": one_object.FORMAT + 1, "since": since, "qo": QO, "extra": {"a": ["kept"]}}
        await bucket.put("queue.json", json.dumps(queue).encode(), expected=ANY)

    async def unknown(self) -> list[Any]:
        queue = await _json(open_bucket(self.url.partition("?")[0]), "queue.json")
        assert (queue["format"], queue["qo"], queue["extra"]) == (one_object.FORMAT + 1, QO, {"a": ["kept"]})
        assert queue["notes"][0]["extra"] == "kept"
        return [record for record in queue["tasks"] if _is_kept(record)]


async def _json(bucket: Bucket, key: str) -> dict[str, Any]:
    blob = await bucket.get(key)
    assert blob is not None
    document: dict[str, Any] = json.loads(blob.data)
    return document


def _is_kept(document: dict[str, Any]) -> bool:
    """Whether the unknown field is in the document, its task, the task's policy and the first event."""
    if "extra" not in document:
        return False
    event = document["events"][0]
    assert document["task"]["extra"] == ["kept", 1.5] and document["task"]["retry"]["extra"] == "kept"
    assert (event["extra"] if isinstance(event, dict) else event[-1]) == "kept"
    return True


class NewerSqliteObject(NewerBuild):
    async def upgrade(self, *, is_additive: bool) -> None:
        db = await self._load()
        NewerSqlite.change(db, is_additive=is_additive)
        await self._bucket().put("queue.sqlite", db.serialize("main"), expected=ANY)

    async def unknown(self) -> list[Any]:
        return NewerSqlite.kept(await self._load())

    async def _load(self) -> apsw.Connection:
        blob = await self._bucket().get("queue.sqlite")
        assert blob is not None
        db = apsw.Connection(":memory:")
        db.deserialize("main", blob.data)
        return db

    def _bucket(self) -> Bucket:
        return open_bucket(self.url.partition("?")[0])


class NewerLog(NewerBuild):
    """Appends a step of the schema, and a record that fills the new columns."""

    def forget_checks(self, engine: Engine) -> None:
        store = below(engine)
        assert isinstance(store, ReplicatedLogEngine)
        store.format_checked_at -= FORMAT_CHECK_INTERVAL

    async def upgrade(self, *, is_additive: bool) -> None:
        since = VERSION if is_additive else VERSION + 1
        columns = tuple((table, "extra", "TEXT", "x") for table in _COLUMNS)
        step = SchemaStep(number=VERSION + 1, since=since, qo=QO, columns=columns)
        db, records, position = await self._replay()
        await append_step(records, position, step)
        db, records, position = await self._replay()
        session = apsw.Session(db, "main")
        for table in _COLUMNS:
            session.attach(table)
            db.execute(f"UPDATE {table} SET extra = 'kept'")
        seq, own_id = position.seq + 1, new_token()
        header = FrameHeader(
            FrameKind.RECORD, 0, seq, seq, own_id, position.id, own_id, schema=VERSION + 1, schema_since=since
        )
        await records.append(LogRecord(header, session.patchset()))

    async def unknown(self) -> list[Any]:
        db, _, _ = await self._replay()
        return NewerSqlite.kept(db)

    async def _replay(self) -> tuple[apsw.Connection, RecordStore, LogPosition]:
        """The tables that the records describe, as the newer build sees them."""
        meta = json.loads((await self._get(META)).data)
        records = RecordStore(self._bucket(), meta["id"], 0)
        db, position = apsw.Connection(":memory:"), LogPosition(0, NO_ID)
        migrate(db, "a replica", FIRST_SCHEMA)
        db.execute(files("qo.engines.replicated_log").joinpath("replica_schema.sql").read_text())
        while record := await records.get(position.seq + 1):
            if FrameFlags.SCHEMA_STEP in record.header.flags:
                for table, name, kind, default in json.loads(record.patchset)["columns"]:
                    db.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind} DEFAULT '{default}'")
            else:
                apsw.Changeset.apply(record.patchset, db)
            position = LogPosition(record.header.last, record.header.id)
        return db, records, position

    async def _get(self, key: str) -> Blob:
        blob = await self._bucket().get(key)
        assert blob is not None
        return blob

    def _bucket(self) -> Bucket:
        return open_bucket(self.url.partition("?")[0])
