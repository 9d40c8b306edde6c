"""The Redis engine: each call of the port runs a Lua script per batch. `lua/prelude.lua` lists the keys."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.redis.address import RedisAddress, address_of
from qo.engines.redis.claims import MAX_BATCH_SIZE, RedisClaims
from qo.engines.redis.direct_pool import DirectPool, run_blocking
from qo.engines.redis.pool import RedisPool
from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.task_fields import (
    STATUSES,
    TaskRecord,
    pack,
    pack_changes,
    pack_new,
    pack_task,
    parse_lane_or_log,
    unknown_fields_of,
    unpack_events,
    unpack_tasks,
    with_unknown_fields,
)
from qo.engines.redis.watch import RedisWatch
from qo.engines.requests import retry_opening
from qo.errors import Conflict, InvalidSetting
from qo.ids import new_token
from qo.model import (
    ADMIN_NOTES,
    AUDIT_NOTES,
    Added,
    Change,
    ClaimRequest,
    CountKey,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    page_start,
)

_SEPARATE_NOTES = (ADMIN_NOTES, AUDIT_NOTES)  # prefixes of notes that have their own keys, for ACLs
T = TypeVar("T")
_YES = ord("1")


class RedisEngine(Engine):
    def __init__(self, address: RedisAddress, clock: Clock = system_clock) -> None:
        self.address, self._clock = address, clock
        self.pool = RedisPool(address)
        self._scripts = ScriptRunner(self.pool, address.prefix)
        self._direct_pool = DirectPool(address)
        self._direct_scripts = ScriptRunner(self._direct_pool, address.prefix)
        self.watch = RedisWatch(self.pool, address.prefix)
        self._claims = RedisClaims(self._scripts, self.watch, self._now, self.apply, self._scripts.set_aside)

    async def open(self) -> None:
        self.pool.is_open = self._direct_pool.is_open = True
        await retry_opening(lambda: self.send("PING"))
        await self._scripts.check_format(f"{self.address.shown_url}: the queue {self.address.prefix}")
        await self._scripts.migrate()

    async def close(self) -> None:
        self.pool.is_open = False
        self._direct_pool.close()
        try:
            await self._claims.close()
        finally:
            await self.pool.close()

    def _now(self) -> str:
        """The time for a script: empty for the server's own time, or the time of a test's clock."""
        return "" if self._clock is system_clock else repr(self._clock())

    # --- writing

    @property
    def adds_directly(self) -> bool:
        return self.address.service is None and self.address.replicas == 0

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        if len(tasks) == 1:
            arguments = new_token(), self._now(), 0, pack_new(tasks), tasks[0].payload
            return [_added(tasks[0], self._direct_scripts.run_directly("add", *arguments))]
        return run_blocking(self._add(self._direct_scripts, tasks))

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self._add(self._scripts, tasks)

    async def _add(self, scripts: ScriptRunner, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(new.id for new in tasks)
        batches = [
            (new_token(), self._now(), len(tasks) - 1 - start, pack_new(batch), *(new.payload for new in batch))
            for start, batch in _batches(tasks)
        ]
        answers = await scripts.run_batches("add", batches) if tasks else []
        words = [word for answer in answers for word in answer.split()]
        return [_added(new, word) for new, word in zip(tasks, words, strict=True)]

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._claims.claim(request)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._claims.wait(request, timeout)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self._write(
            "apply",
            [
                (
                    new_token(),
                    self._now(),
                    pack_changes(batch),
                    *(each.payload or each.result or b"" for each in batch),
                )
                for _, batch in _batches(changes)
            ],
        )

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._write("delete", [(new_token(), pack(batch)) for _, batch in _batches(ids)])

    async def _write(self, script: str, batches: Sequence[Sequence[Any]]) -> list[bool]:
        if not batches:
            return []
        return [letter == _YES for answer in await self._scripts.run_batches(script, batches) for letter in answer]

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        if not ids:
            return []
        answers = await self._scripts.run_batches("get", [(pack(batch),) for _, batch in _batches(ids)])
        found: dict[str, Task] = {}
        for rows in answers:
            tasks, damage = unpack_tasks(rows)
            await self._scripts.set_aside(damage)
            found |= {task.id: task for task in tasks}
        return [found.get(task_id) for task_id in ids]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        created_at, last_id = page_start(after, created_before) or (None, None)
        statuses = [status for status in STATUSES if status in where.possible_statuses]
        found: list[Task] = []
        while len(found) < limit and statuses:
            page_size = min(limit - len(found), MAX_BATCH_SIZE)
            start, ages = (page_size, created_at, last_id), (where.worker_id, where.expired_for, where.finished_for)
            lanes = (where.queues, where.types, where.pending, where.batch)
            arguments = pack((*start, *ages, statuses, "".join(where.shards) or None, where.retrying, *lanes))
            next_created_at, next_id, *rows = await self._scripts.run("find", self._now(), arguments)
            tasks, damage = unpack_tasks(rows)
            await self._scripts.set_aside(damage)
            found += tasks
            if next_created_at is None:
                break
            created_at, last_id = float(next_created_at), next_id.decode()
        return found

    async def count(self, batch: str | None = None) -> Counts:
        counts: Counter[CountKey] = Counter()
        stored = await (self._scripts.count_lanes() if batch is None else self._scripts.count_batch(batch))
        for (name, status), number in stored.items():
            if (lane := parse_lane_or_log(name)) is not None:
                counts[CountKey(lane.queue, lane.type, status, lane.priority)] += number
        return dict(counts)

    async def history(self, task_id: str) -> list[Event]:
        fields = await self.send("HGETALL", self._task_key(task_id))
        return unpack_events(zip(fields[::2], fields[1::2], strict=True))

    def _task_key(self, task_id: str) -> str:
        return f"{{{self.address.prefix}}}:task:{task_id}"

    # --- moving finished tasks to an archive and back

    async def read_records(self, tasks: Sequence[Task]) -> list[TaskRecord]:
        """The tasks with their events and with the fields that this build does not know."""
        commands = [("HGETALL", self._task_key(task.id)) for task in tasks]
        answers = await self._scripts.send(*commands) if commands else []
        records = []
        for task, words in zip(tasks, answers, strict=True):
            fields = dict(zip(words[::2], words[1::2], strict=True))
            events = unpack_events(fields.items())
            records.append(TaskRecord(task, events, unknown_fields_of(fields, pack_task(task, events))))
        return records

    async def followers(self, ids: Sequence[str]) -> list[str]:
        """The current tasks of the idempotency keys whose first tasks these are, if others have followed."""
        batches = [(pack(batch),) for _, batch in _batches(ids)]
        answers = await self._scripts.run_batches("followers", batches) if ids else []
        return [last.decode() for answer in answers for last in answer if last is not None]

    async def evict(self, tasks: Sequence[Task]) -> tuple[set[str], set[str]]:
        """Remove finished tasks that the archive has, unless they have changed since they were read.

        Returns the ids of tasks that have changed, and the ids of tasks that were deleted, or that another process
        evicted more than a minute ago.
        """
        changed, missing = set[str](), set[str]()
        for _, batch in _batches(tasks):
            answer = await self._scripts.run("evict", pack([(task.id, task.version) for task in batch]))
            changed.update(task_id.decode() for task_id in answer[0])
            missing.update(task_id.decode() for task_id in answer[1])
        return changed, missing

    async def restore(self, record: TaskRecord) -> None:
        """Store a finished task from the archive, unless Redis has it."""
        fields = with_unknown_fields(pack_task(record.task, record.events), record.unknown_fields)
        await self._scripts.run("restore", record.task.id, *(word for field in fields.items() for word in field))

    # --- notes

    async def now(self) -> float:
        if self._clock is not system_clock:
            return self._clock()
        seconds, microseconds = await self.send("TIME")
        return int(seconds) + int(microseconds) / 1e6

    async def read_note(self, name: str) -> Note | None:
        stored = await self.send("HGET", self._notes_key(name), name)
        return None if stored is None else _note(name, stored)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        version = new_token()
        if await self._scripts.run("write_note", version, name, data, expected.encode("latin-1")) != b"1":
            raise Conflict(f"note {name!r} was written by another process")
        return version

    async def notes(self, prefix: str) -> list[Note]:
        """Reads the keys of admin and audit notes only if the prefix may match them: users may lack the right."""
        keys = {
            self._notes_key(prefix),
            *(self._notes_key(start) for start in _SEPARATE_NOTES if start.startswith(prefix)),
        }
        found: list[Note] = []
        for key in keys:
            fields = await self.send("HGETALL", key)
            pairs = zip(fields[::2], fields[1::2], strict=True)
            found += [_note(name.decode(errors="replace"), stored) for name, stored in pairs]
        return sorted(note for note in found if note.name.startswith(prefix))

    async def drop_note(self, name: str) -> None:
        await self._scripts.run("drop_note", name)

    def _notes_key(self, name: str) -> str:
        """The key that holds this note, or the notes of this prefix. See `notes_key` in lua/prelude.lua."""
        folder = next((start.rstrip("/") for start in _SEPARATE_NOTES if name.startswith(start)), "notes")
        return f"{{{self.address.prefix}}}:{folder}"

    async def send(self, *command: Any, writing: bool = False) -> Any:
        (reply,) = await self._scripts.send(command, writing=writing)
        if isinstance(reply, RedisError):
            raise self.pool.error(reply) from reply
        return reply


def _batches(items: Sequence[T]) -> Iterator[tuple[int, Sequence[T]]]:
    """Batches with the index of their first item."""
    return ((start, items[start : start + MAX_BATCH_SIZE]) for start in range(0, len(items), MAX_BATCH_SIZE))


def _added(new: NewTask, answer: bytes) -> Added:
    return Added(answer[1:].decode() or new.id, new=answer[0] == _YES)


def _note(name: str, stored: bytes) -> Note:
    version, _, data = stored.partition(b" ")
    return Note(name, data, version.decode("latin-1"))  # never fails, so that a damaged note can be overwritten


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:
    address = address_of(url)
    engine = RedisEngine(address, clock)
    if address.archive is None:
        return engine
    try:
        from qo.engines.redis.archive import PostgresArchive  # noqa: PLC0415 - its driver is an extra
        from qo.engines.redis.archived_engine import ArchivingEngine  # noqa: PLC0415
    except ImportError as error:
        raise InvalidSetting("archive= needs its driver: pip install 'qo-queue[postgres]'") from error
    return ArchivingEngine(engine, PostgresArchive(address.archive, address.prefix), clock)
