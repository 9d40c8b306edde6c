"""An archive of finished tasks and their events in Postgres, because Redis keeps everything in memory."""

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from qo.codec import decode_task, encode_task
from qo.engines.redis.task_fields import TaskRecord
from qo.errors import InvalidSetting, StorageError
from qo.model import FINISHED, CountKey, Counts, Event, Filter, Position, Status, Task

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS qo_archive (
    prefix text NOT NULL, id text NOT NULL COLLATE "C", version bigint NOT NULL,
    queue text NOT NULL, type text NOT NULL, status text NOT NULL, worker_id text,
    created_at double precision NOT NULL, completed_at double precision NOT NULL,
    task json NOT NULL, events json NOT NULL, priority smallint NOT NULL DEFAULT 6, rest bytea, batch text,
    PRIMARY KEY (prefix, id)
);
DO $$ BEGIN  -- checked first, because ALTER TABLE waits for every transaction that uses the table
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'qo_archive'::regclass AND attname = 'priority') THEN
        ALTER TABLE qo_archive ADD priority smallint NOT NULL DEFAULT 6;
        UPDATE qo_archive SET priority = (task ->> 'priority')::smallint WHERE (task ->> 'priority')::smallint <> 6;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'qo_archive'::regclass AND attname = 'rest') THEN
        ALTER TABLE qo_archive ADD rest bytea;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'qo_archive'::regclass AND attname = 'batch') THEN
        ALTER TABLE qo_archive ADD batch text;
    END IF;
END $$;
CREATE INDEX IF NOT EXISTS qo_archive_listed ON qo_archive (prefix, created_at, id);
CREATE INDEX IF NOT EXISTS qo_archive_batched ON qo_archive (prefix, batch, created_at) WHERE batch IS NOT NULL;
"""
_CREATION_LOCK = 7_160_871  # held by a process that creates the table
_SAVE = """
INSERT INTO qo_archive (prefix, id, version, queue, type, status, worker_id, created_at, completed_at,
                        task, events, priority, rest, batch)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (prefix, id) DO UPDATE SET
    version = excluded.version, queue = excluded.queue, type = excluded.type, status = excluded.status,
    worker_id = excluded.worker_id, created_at = excluded.created_at, completed_at = excluded.completed_at,
    task = excluded.task, events = excluded.events, priority = excluded.priority, rest = excluded.rest,
    batch = excluded.batch
WHERE qo_archive.version < excluded.version
"""
_FIND = """
SELECT task::text FROM qo_archive
WHERE prefix = %(prefix)s AND created_at <= %(created_at)s
  AND (created_at, id) < (%(created_at)s, %(id)s)
  AND (%(queues)s::text[] IS NULL OR queue = ANY (%(queues)s)) AND (%(types)s::text[] IS NULL OR type = ANY (%(types)s))
  AND (%(statuses)s::text[] IS NULL OR status = ANY (%(statuses)s))
  AND (%(batch)s::text IS NULL OR batch = %(batch)s)
  AND (%(shards)s::text[] IS NULL OR left(id, 1) = ANY (%(shards)s))
  AND (%(worker_id)s::text IS NULL OR worker_id = %(worker_id)s) AND completed_at <= %(completed_at)s
ORDER BY created_at DESC, id DESC LIMIT %(limit)s
"""
_AFTER_ALL_IDS = "~"

_events = msgspec.json.Decoder(list[Event])


class Archive(Protocol):
    """A store of finished tasks. Every operation is safe to repeat."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def save(self, records: Sequence[TaskRecord]) -> None: ...
    async def get(self, ids: Sequence[str]) -> dict[str, Task]: ...
    async def history(self, task_id: str) -> list[Event]: ...
    async def unknown_fields(self, task_id: str) -> bytes | None: ...
    async def find(self, where: Filter, *, limit: int, start: Position | None, now: float) -> list[Task]: ...
    async def count(self, batch: str | None = None) -> Counts: ...
    async def delete(self, ids: Sequence[str]) -> set[str]: ...
    async def withdraw(self, tasks: Sequence[Task]) -> None: ...


class PostgresArchive:
    def __init__(self, url: str, prefix: str) -> None:
        self._url, self._prefix = _checked(url), prefix
        self._connection: psycopg.AsyncConnection[TupleRow] | None = None
        self._lock = asyncio.Lock()  # one statement at a time on the connection

    async def open(self) -> None:
        await self._run("SELECT 1")

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def save(self, records: Sequence[TaskRecord]) -> None:
        rows = [
            (
                self._prefix, task.id, task.version, task.queue, task.type, task.status.value, task.worker_id,
                task.created_at, task.completed_at, encode_task(task).decode(), msgspec.json.encode(events).decode(),
                task.priority, unknown_fields, task.batch,
            )
            for task, events, unknown_fields in records
        ]  # fmt: skip
        await self._run(_SAVE, rows, many=True)

    async def get(self, ids: Sequence[str]) -> dict[str, Task]:
        rows = await self._run(
            "SELECT id, task::text FROM qo_archive WHERE prefix = %s AND id = ANY (%s)", (self._prefix, list(ids))
        )
        return {task_id: decode_task(task) for task_id, task in rows}

    async def history(self, task_id: str) -> list[Event]:
        rows = await self._run(
            "SELECT events::text FROM qo_archive WHERE prefix = %s AND id = %s", (self._prefix, task_id)
        )
        return _events.decode(rows[0][0]) if rows else []

    async def unknown_fields(self, task_id: str) -> bytes | None:
        """The fields of the task that a newer build has added."""
        rows = await self._run("SELECT rest FROM qo_archive WHERE prefix = %s AND id = %s", (self._prefix, task_id))
        return rows[0][0] if rows else None

    async def find(self, where: Filter, *, limit: int, start: Position | None, now: float) -> list[Task]:
        if FINISHED.isdisjoint(where.possible_statuses):
            return []
        created_at, last_id = start or (float("inf"), _AFTER_ALL_IDS)
        values = {
            "prefix": self._prefix,
            "created_at": created_at,
            "id": last_id,
            "queues": list(where.queues) or None,
            "types": list(where.types) or None,
            "statuses": [status.value for status in where.statuses] or None,
            "shards": list(where.shards) or None,
            "worker_id": where.worker_id,
            "batch": where.batch,
            "completed_at": float("inf") if where.finished_for is None else now - where.finished_for,
            "limit": limit,
        }
        return [decode_task(task) for (task,) in await self._run(_FIND, values)]

    async def count(self, batch: str | None = None) -> Counts:
        where, values = ("", (self._prefix,)) if batch is None else (" AND batch = %s", (self._prefix, batch))
        rows = await self._run(
            "SELECT queue, type, status, priority, count(*) FROM qo_archive"  # noqa: S608 - a constant condition
            f" WHERE prefix = %s{where} GROUP BY 1, 2, 3, 4",
            values,
        )
        return {
            CountKey(queue, type_, Status(status), priority): number for queue, type_, status, priority, number in rows
        }

    async def delete(self, ids: Sequence[str]) -> set[str]:
        """Return the ids that the archive had."""
        rows = await self._run(
            "DELETE FROM qo_archive WHERE prefix = %s AND id = ANY (%s) RETURNING id", (self._prefix, list(ids))
        )
        return {task_id for (task_id,) in rows}

    async def withdraw(self, tasks: Sequence[Task]) -> None:
        """Delete these versions of tasks; other versions stay."""
        await self._run(
            "DELETE FROM qo_archive USING unnest(%s::text[], %s::bigint[]) AS outdated (id, version)"
            " WHERE prefix = %s AND qo_archive.id = outdated.id AND qo_archive.version = outdated.version",
            ([task.id for task in tasks], [task.version for task in tasks], self._prefix),
        )

    async def _run(self, sql: str, values: Any = None, *, many: bool = False) -> list[Any]:
        """Run a statement that is safe to repeat: if the connection is lost, it runs again on a new one."""
        async with self._lock:
            for is_last in (False, True):
                try:
                    connection = self._connection = self._connection or await self._connect()
                    async with connection.cursor() as cursor:
                        await (cursor.executemany(sql, values) if many else cursor.execute(sql, values))
                        return await cursor.fetchall() if cursor.description else []
                except psycopg.OperationalError as error:
                    await self.close()
                    if is_last:
                        raise StorageError(f"the archive cannot be reached: {_first_line(error)}") from error
                except psycopg.Error as error:
                    raise StorageError(f"the archive refused a statement: {_first_line(error)}") from error
        raise AssertionError

    async def _connect(self) -> psycopg.AsyncConnection[TupleRow]:
        connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True, connect_timeout=5)
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
            await connection.execute(_CREATE_TABLE)
        return connection


async def check_reachable(url: str) -> None:
    """Raise StorageError if the archive does not respond. Creates nothing."""
    try:
        async with await psycopg.AsyncConnection.connect(_checked(url), connect_timeout=5) as connection:
            await connection.execute("SELECT 1")
    except psycopg.Error as error:
        raise StorageError(f"the archive cannot be reached: {_first_line(error)}") from error


def _checked(url: str) -> str:
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:  # not chained, because libpq may quote the URL with its password
        is_valid = False
    else:
        is_valid = urlsplit(url).scheme in {"postgresql", "postgres"}
    if not is_valid:
        raise InvalidSetting("archive= must be a postgresql:// URL, with its & and ? written as %26 and %3F")
    return url


def _first_line(error: psycopg.Error) -> str:
    return str(error).partition("\n")[0][:200]
