"""Hooks of the contract that damage one stored task or note."""

from collections.abc import Callable

import msgspec
import psycopg

from qo.bucket import ANY, Blob, Bucket
from qo.buckets.memory import MemoryBucket
from qo.engine import Engine
from qo.engines.note_objects import key_of
from qo.engines.object_per_task import ObjectPerTaskEngine
from qo.engines.object_per_task.keys import task_key
from qo.engines.one_object import OneObjectEngine, StorageBucket
from qo.engines.postgres import PostgresEngine
from qo.engines.redis import RedisEngine
from qo.engines.replicated_log import ReplicatedLogEngine
from qo.engines.replicated_log.log_shard import LogShard
from qo.engines.replicated_log.sharded_log import ShardedLog
from qo.engines.requests import retry
from qo.engines.sqlite import SqliteEngine
from qo.engines.sqlite_object import SqliteObjectEngine
from qo.sqlite_tables.table import SqliteTable
from tests.engines.below import below


async def damage(engine: Engine, task_id: str) -> None:
    """Damage one stored task of any engine with an external store."""
    if isinstance(engine, PostgresEngine):
        await damage_postgres(engine, task_id, "retry = '{\"half'")
    elif isinstance(engine, RedisEngine):
        await damage_redis(engine, task_id, "d")
    elif isinstance(engine, SqliteEngine):
        await damage_sqlite(engine, task_id, "retry = '{\"half'")
    else:
        await DamagedLayouts().damage(engine, task_id)


class DamagedLayouts:
    """A mixin for an EngineContract of layouts."""

    async def damage(self, engine: Engine, task_id: str) -> None:
        store = below(engine)
        if isinstance(store, ObjectPerTaskEngine):
            await truncate(_bucket_of(store), task_key(task_id))
        elif isinstance(store, ReplicatedLogEngine):
            log = store._shard
            assert log is not None
            shard = log.home(task_id) if isinstance(log, ShardedLog) else log
            await damage_sqlite(shard, task_id, "retry = '{\"half'")
        elif isinstance(store, SqliteObjectEngine):
            await damage_sqlite(store, task_id, "retry = '{\"half'")
        else:
            assert isinstance(store, OneObjectEngine)
            await damage_one(store, task_id)

    async def damage_note(self, engine: Engine, name: str) -> None:
        store = below(engine)
        if isinstance(store, ObjectPerTaskEngine):
            await truncate(_bucket_of(store), key_of(name))
        else:
            await engine.write_note(name, b'{"half": ', expected=ANY)


def _bucket_of(engine: ObjectPerTaskEngine) -> Bucket:
    return engine._layout.bucket


class SpoilingBucket(MemoryBucket):
    """Flips a bit in the next responses with a large value or a whole queue. The stored objects are not changed."""

    spoiled_reads = 0

    async def get(self, key: str) -> Blob | None:
        blob = await super().get(key)
        if blob is None or not self.spoiled_reads or not key.startswith(("data/", "queue", "log/")):
            return blob
        self.spoiled_reads -= 1
        at = len(blob.data) // 2
        return blob._replace(data=blob.data[:at] + bytes([blob.data[at] ^ 1]) + blob.data[at + 1 :])


async def truncate(bucket: Bucket, key: str) -> None:
    blob = await retry(lambda: bucket.get(key))
    assert blob is not None, f"there is no {key}"
    data = blob.data[: len(blob.data) // 2]
    await retry(lambda: bucket.put(key, data, expected=ANY))


def halve(data: bytes) -> bytes:
    return data[: len(data) // 2]


async def damage_redis(engine: Engine, task_id: str, field: str, spoil: Callable[[bytes], bytes] = halve) -> None:
    """Truncate one field: scripts read the state (`s`), and do not read the description (`d`)."""
    assert isinstance(engine, RedisEngine)
    key = f"{{{engine.address.prefix}}}:task:{task_id}"
    stored = await engine.send("HGET", key, field)
    await engine.send("HSET", key, field, spoil(stored), writing=True)


async def damage_postgres(engine: Engine, task_id: str, setting: str) -> None:
    assert isinstance(engine, PostgresEngine)
    address = engine._address
    connection = await psycopg.AsyncConnection.connect(address.conninfo, autocommit=True)
    async with connection:
        await connection.execute(f"UPDATE {address.schema}.tasks SET {setting} WHERE id = %s", (task_id,))


async def damage_sqlite(engine: Engine, task_id: str, setting: str) -> None:
    def spoil(table: SqliteTable) -> None:
        db = table._db
        if db.execute("SELECT 1 FROM tasks WHERE id = ?", (task_id,)).get is None:
            table.delete([task_id])  # it may be in a segment, which this puts back into the tables
        db.execute(f"UPDATE tasks SET {setting}{touched} WHERE id = ?", (task_id,))

    # A segment that is being written at this moment holds the healthy task. It must not replace the damaged row.
    touched = ", version = version + 1" if isinstance(engine, LogShard) else ""
    assert isinstance(engine, SqliteEngine | SqliteObjectEngine | LogShard)
    await engine._write(spoil)


async def damage_one(engine: OneObjectEngine, task_id: str) -> None:
    """Give the task an unknown status in the object."""
    bucket, key = engine._bucket, engine._key
    blob = await retry(lambda: bucket.get(key))
    assert blob is not None
    document = msgspec.json.decode(blob.data)
    (record,) = [record for record in document["tasks"] if record["task"]["id"] == task_id]
    record["task"]["status"] = "qending"
    data = msgspec.json.encode(document)
    expected = blob.version if isinstance(bucket, StorageBucket) else ANY
    await retry(lambda: bucket.put(key, data, expected=expected))
