"""The engine: the two rules as scripts, one call a batch. The key map is in `lua/prelude.lua`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from redis.exceptions import RedisError

from qo.clock import Clock, system_clock
from qo.engine import Engine
from qo.engines.redis.address import RedisAddress, address_of
from qo.engines.redis.claims import CHUNK, RedisClaims
from qo.engines.redis.direct_pool import DirectPool, run_blocking
from qo.engines.redis.lane_counts import counted
from qo.engines.redis.pool import RedisPool
from qo.engines.redis.scripts import ScriptRunner
from qo.engines.redis.stored_format import check_stored_format, record_format
from qo.engines.redis.task_fields import (
    STATUSES,
    KeptTask,
    events_of,
    known_place,
    pack,
    pack_changes,
    pack_new,
    pack_task,
    rest_of,
    tasks_of,
    with_rest,
)
from qo.engines.redis.watch import RedisWatch
from qo.engines.retry import retry_opening
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

_APART = (ADMIN_NOTES, AUDIT_NOTES)  # notes with keys of their own
T = TypeVar("T")
_YES = ord("1")


class RedisEngine(Engine):
    def __init__(self, address: RedisAddress, clock: Clock = system_clock) -> None:
        self._address, self._clock = address, clock
        self._lines = RedisPool(address)
        self._calls = ScriptRunner(self._lines, address.prefix)
        self._direct_lines = DirectPool(address)
        self._direct_calls = ScriptRunner(self._direct_lines, address.prefix)
        self._watch = RedisWatch(self._lines, address.prefix)
        self._claiming = RedisClaims(self._calls, self._watch, self._now, self.apply, self._calls.set_aside)

    async def open(self) -> None:
        self._lines.is_open = self._direct_lines.is_open = True
        await retry_opening(lambda: self._ask("PING"))
        await check_stored_format(self._calls, self._address.prefix, self._address.shown)
        await record_format(self._calls, self._address.prefix)

    async def close(self) -> None:
        self._lines.is_open = False
        self._direct_lines.close()
        try:
            await self._claiming.close()
        finally:
            await self._lines.close()

    def _now(self) -> str:
        """Empty: the server's own time counts. A test's clock is told instead."""
        return "" if self._clock is system_clock else repr(self._clock())

    # --- writing

    @property
    def adds_directly(self) -> bool:
        return self._address.service is None and self._address.replicas == 0

    def add_directly(self, tasks: Sequence[NewTask]) -> list[Added]:
        return run_blocking(self._add(self._direct_calls, tasks))

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        return await self._add(self._calls, tasks)

    async def _add(self, calls: ScriptRunner, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(new.id for new in tasks)
        batches = [
            (new_token(), self._now(), len(tasks) - 1 - at, pack_new(chunk), *(new.payload for new in chunk))
            for at, chunk in _chunks(tasks)
        ]
        answers = await calls.many("add", batches) if tasks else []
        words = [word for answer in answers for word in answer.split()]
        return [Added(word[1:].decode() or new.id, new=word[0] == _YES) for new, word in zip(tasks, words, strict=True)]

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._claiming.claim(request)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._claiming.wait(request, timeout)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        return await self._write(
            "apply",
            [
                (new_token(), self._now(), pack_changes(chunk), *(change.result or b"" for change in chunk))
                for _, chunk in _chunks(changes)
            ],
        )

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._write("delete", [(new_token(), pack(chunk)) for _, chunk in _chunks(ids)])

    async def _write(self, name: str, batches: Sequence[Sequence[Any]]) -> list[bool]:
        if not batches:
            return []
        return [letter == _YES for answer in await self._calls.many(name, batches) for letter in answer]

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        if not ids:
            return []
        answers = await self._calls.many("get", [(pack(chunk),) for _, chunk in _chunks(ids)])
        read = [tasks_of(rows) for rows in answers]
        for one in read:
            await self._calls.set_aside(one.damage)
        found = {task.id: task for one in read for task in one.tasks}
        return [found.get(task_id) for task_id in ids]

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        created_at, last_id = page_start(after, created_before) or (None, None)
        statuses = [status for status in STATUSES if status in where.possible_statuses]
        found: list[Task] = []
        while len(found) < limit and statuses:
            page = min(limit - len(found), CHUNK)
            place, ages = (page, created_at, last_id), (where.worker_id, where.expired_for, where.finished_for)
            lanes = (where.queues, where.types)
            asked = (*place, *ages, statuses, "".join(where.shards) or None, where.retrying, *lanes)
            next_created_at, next_id, *rows = await self._calls.one("find", self._now(), pack(asked))
            tasks, damage = tasks_of(rows)
            await self._calls.set_aside(damage)
            found += tasks
            if next_created_at is None:
                break
            created_at, last_id = float(next_created_at), next_id.decode()
        return found

    async def count(self) -> Counts:
        counts: Counter[CountKey] = Counter()
        for (lane, status), number in (await counted(self._calls)).items():
            if (place := known_place(lane)) is not None:
                queue, type_, _, priority = place
                counts[CountKey(queue, type_, status, priority)] += number
        return dict(counts)

    async def history(self, task_id: str) -> list[Event]:
        fields = await self._ask("HGETALL", f"{{{self._address.prefix}}}:task:{task_id}")
        return events_of(zip(fields[::2], fields[1::2], strict=True))

    # --- moving to an archive, and back

    async def whole(self, tasks: Sequence[Task]) -> list[KeptTask]:
        """With all that their hashes hold."""
        commands = [("HGETALL", f"{{{self._address.prefix}}}:task:{task.id}") for task in tasks]
        answers = await self._calls.plain(*commands) if commands else []
        kept = []
        for task, words in zip(tasks, answers, strict=True):
            fields = dict(zip(words[::2], words[1::2], strict=True))
            events = events_of(fields.items())
            kept.append(KeptTask(task, events, rest_of(fields, pack_task(task, events))))
        return kept

    async def followers(self, ids: Sequence[str]) -> list[str]:
        """The last tasks under the idempotency keys that these tasks were the first under, where others follow."""
        answers = await self._calls.many("followers", [(pack(chunk),) for _, chunk in _chunks(ids)]) if ids else []
        return [last.decode() for answer in answers for last in answer if last is not None]

    async def evict(self, tasks: Sequence[Task]) -> None:
        """Forget finished tasks that are kept elsewhere, unless they have changed since."""
        for _, chunk in _chunks(tasks):
            await self._calls.one("evict", pack([(task.id, task.version) for task in chunk]))

    async def restore(self, kept: KeptTask) -> None:
        """Take a finished task back. Nothing happens if it is here."""
        fields = with_rest(pack_task(kept.task, kept.events), kept.rest)
        await self._calls.one("restore", kept.task.id, *(word for field in fields.items() for word in field))

    # --- notes

    async def now(self) -> float:
        if self._clock is not system_clock:
            return self._clock()
        seconds, microseconds = await self._ask("TIME")
        return int(seconds) + int(microseconds) / 1e6

    async def read_note(self, name: str) -> Note | None:
        stored = await self._ask("HGET", self._notes(name), name)
        return None if stored is None else _note(name, stored)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        version = new_token()
        if await self._calls.one("write_note", version, name, data, expected.encode("latin-1")) != b"1":
            raise Conflict(f"note {name!r} was written by someone else")
        return version

    async def notes(self, prefix: str) -> list[Note]:
        """Those with a key of their own only if the prefix leaves no choice: a user may not read that key."""
        keys = {self._notes(prefix), *(self._notes(start) for start in _APART if start.startswith(prefix))}
        found: list[Note] = []
        for key in keys:
            fields = await self._ask("HGETALL", key)
            pairs = zip(fields[::2], fields[1::2], strict=True)
            found += [_note(name.decode(errors="replace"), stored) for name, stored in pairs]
        return sorted(note for note in found if note.name.startswith(prefix))

    async def drop_note(self, name: str) -> None:
        await self._calls.one("drop_note", name)

    def _notes(self, name: str) -> str:
        """The key that holds this note, or notes of this prefix: `note_place` in lua/prelude.lua."""
        folder = next((start.rstrip("/") for start in _APART if name.startswith(start)), "notes")
        return f"{{{self._address.prefix}}}:{folder}"

    async def _ask(self, *command: Any, writing: bool = False) -> Any:
        (reply,) = await self._calls.plain(command, writing=writing)
        if isinstance(reply, RedisError):
            raise self._lines.error(reply) from reply
        return reply


def _chunks(batch: Sequence[T]) -> Iterator[tuple[int, Sequence[T]]]:
    return ((at, batch[at : at + CHUNK]) for at in range(0, len(batch), CHUNK))


def _note(name: str, stored: bytes) -> Note:
    version, _, data = stored.partition(b" ")
    return Note(name, data, version.decode("latin-1"))  # a damaged one can be named too, and so written over


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
