"""What is read."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from qo.engines.postgres.arrays import texts, uuids
from qo.engines.postgres.pool import PostgresPool
from qo.engines.postgres.rows import STATUS
from qo.engines.postgres.statements import COLUMNS, NOTE_TABLES, fill, of_note
from qo.engines.postgres.table import PostgresTable
from qo.model import FINISHED, CountKey, Counts, Event, Filter, Note, Position, Status, Task, is_id

_FEW = 1000  # pending tasks that are quicker gathered and sorted than looked for among all
_MANY_SLOTS = 1000  # rows of counts worth gathering
_NOW = "coalesce(%(now)s::float8, extract(epoch FROM clock_timestamp())::float8)"


_SHELVED = FINISHED - {Status.COMPLETED}


class _PostgresBranch(NamedTuple):
    """One part of a search, with the index that holds all it can find."""

    test: str
    in_order: bool = True  # the index gives them newest first; else they are few, and sorted
    place: str = "{schema}.tasks"


_READY = _PostgresBranch(
    "status = 'pending'", False, "{schema}.ready JOIN {schema}.tasks USING (id, version, lane, rank)"
)
_COMING = _PostgresBranch(
    "status = 'pending'", False, "{schema}.coming JOIN {schema}.tasks USING (id, version, available_at)"
)
_HELD = "(SELECT DISTINCT unnest(ids) AS id FROM {schema}.leases WHERE) AS held JOIN {schema}.tasks USING (id)"


class PostgresReader:
    def __init__(self, line: PostgresPool, table: PostgresTable) -> None:
        self._line = line
        self._table = table

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        rows = await self._line.read("get", {"id": uuids([one for one in ids if is_id(one)])})
        found = {task.id: task for task in (await self._table.read_tasks(rows)).tasks}
        return [found.get(task_id) for task_id in ids]

    async def find(self, where: Filter, limit: int, start: Position | None) -> list[Task]:
        many = _asks_for_pending(where) and await self._many_pending()
        sql, values = query(where, limit, start, many_pending=many)
        filled = fill(sql, self._line.address.schema)
        while True:
            rows = await self._line.persist(lambda _: self._line.execute(filled, values | {"now": self._table.now()}))
            tasks, has_damage = await self._table.read_tasks(rows)
            if not has_damage:  # else what was set aside makes room for others on the page
                return tasks

    async def _many_pending(self) -> bool:
        """Whether more than `_FEW` tasks are pending. Stops there, so the cost does not grow with types or tasks."""
        ((number,),) = await self._line.read("some_pending", {"limit": _FEW + 1})
        return int(number) > _FEW

    async def count(self) -> Counts:
        rows = await self._line.read("counts", {})
        if sum(slots for *_, slots in rows) > _MANY_SLOTS + 2 * len(rows):
            await self._line.write("fold", {})
        lanes = await self._table.lanes.look_up(lane for lane, *_ in rows)
        counts: Counter[CountKey] = Counter()
        for lane, status, number, _ in rows:
            if status in STATUS and lane in lanes:
                queue, type_, _, priority = lanes[lane]
                counts[CountKey(queue, type_, STATUS[status], priority)] += number
        return dict(counts)

    async def history(self, task_id: str) -> list[Event]:
        if not is_id(task_id):
            return []
        return [
            Event(
                version=version, at=at, status=STATUS[status], attempt=attempt, failures=failures,
                worker_id=worker_id, error=error, available_at=available_at,
            )
            for version, at, status, attempt, failures, worker_id, error, available_at in await self._line.read(
                "history", {"id": task_id}
            )
            if status in STATUS
        ]  # fmt: skip

    async def now(self) -> float:
        if (given := self._table.now()) is not None:
            return given
        ((now,),) = await self._line.read("server_time", {})
        return float(now)

    async def read_note(self, name: str) -> Note | None:
        rows = await self._line.read(of_note("read_note", name), {"name": name})
        return Note(*rows[0]) if rows else None

    async def notes(self, prefix: str) -> list[Note]:
        """Those with a table of their own only if the prefix leaves no choice: a role may not read that table."""
        places = [of_note("notes", prefix)]
        places += [of_note("notes", start) for start in NOTE_TABLES if start != prefix and start.startswith(prefix)]
        return sorted([Note(*row) for place in places for row in await self._line.read(place, {"prefix": prefix})])


def query(where: Filter, limit: int, start: Position | None, *, many_pending: bool) -> tuple[str, dict[str, Any]]:
    """One page: arms that each come out of one index, merged. A fence keeps the planner from looking elsewhere."""
    narrow, values = _narrow(where, start)
    order = "ORDER BY created_at DESC, id DESC LIMIT %(limit)s"
    arms = [
        f"(SELECT tasks.* FROM {arm.place} WHERE {arm.test}{narrow} {order if arm.in_order else 'OFFSET 0'})"  # noqa: S608 - ours
        for arm in _arms(where, many_pending=many_pending)
    ]
    merged = " UNION ALL ".join(arms)
    return (
        f"SELECT {COLUMNS} FROM ({merged}) AS t ORDER BY t.created_at DESC, t.id DESC LIMIT %(limit)s",  # noqa: S608
        values | {"limit": max(limit, 0), "statuses": texts(sorted(where.possible_statuses))},
    )


def _narrow(where: Filter, start: Position | None) -> tuple[str, dict[str, Any]]:
    tests, values = list[str](), dict[str, Any]()
    if where.queues or where.types:
        tests.append(
            "lane + 0 = ANY (ARRAY(SELECT n FROM {schema}.lanes"
            " WHERE (%(queues)s::text[] = '{}' OR queue = ANY (%(queues)s::text[]))"
            " AND (%(types)s::text[] = '{}' OR type = ANY (%(types)s::text[]))))"
        )
        values |= {"queues": texts(where.queues), "types": texts(where.types)}
    if where.worker_id is not None:
        tests.append("worker_id = %(worker_id)s")
        values["worker_id"] = where.worker_id
    if where.expired_for is not None:
        tests.append(f"lease_expires_at <= {_NOW} - %(expired_for)s")
        values["expired_for"] = float(where.expired_for)
    if where.finished_for is not None:
        # Nothing ends before it is created: without saying so, the search would begin among the newest tasks.
        tests += [f"{column} <= {_NOW} - %(finished_for)s" for column in ("completed_at", "created_at")]
        values["finished_for"] = float(where.finished_for)
    if where.shards:
        tests.append("left(tasks.id::text, 1) = ANY (%(shards)s::text[])")
        values["shards"] = texts(where.shards)
    if where.retrying is not None:
        tests.append("(status <> 'pending' OR (failures > 0) = %(retrying)s)")
        values["retrying"] = where.retrying
    if start is not None:
        tests.append("(created_at, id) < (%(before_at)s::float8, %(before_id)s::uuid)")
        values["before_at"], values["before_id"] = float(start.created_at), start.id
    return "".join(f" AND {test}" for test in tests), values


def _asks_for_pending(where: Filter) -> bool:
    """Whether the pending tasks may come from `ready` and `coming`: for all statuses the list is read in its order."""
    return Status.PENDING in where.possible_statuses and len(where.possible_statuses) < len(Status)


def _arms(where: Filter, *, many_pending: bool) -> list[_PostgresBranch]:
    statuses = where.possible_statuses
    if len(statuses) == len(Status) or (Status.PENDING in statuses and many_pending):
        return [_PostgresBranch("status = ANY (%(statuses)s::text[])")]
    arms = [_PostgresBranch(f"shelf = '{status.value}'") for status in sorted(statuses & _SHELVED)]
    if Status.COMPLETED in statuses:
        arms.append(_PostgresBranch("status = 'completed'"))
    if Status.PENDING in statuses:
        arms += [_READY, _COMING]
    if Status.RUNNING in statuses:
        early = "" if where.expired_for is None else f"WHERE expires_at <= {_NOW} - %(expired_for)s"
        arms.append(_PostgresBranch("status = 'running'", False, _HELD.replace("WHERE", early)))
    return arms or [_PostgresBranch("false")]
