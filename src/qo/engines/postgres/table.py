"""What is written: the two rules, each a statement. A call that the line cut short is asked again, and told so."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from qo.clock import Clock
from qo.damage import Damage, DamageLog, check_known_format, check_stored, encode_damage, note_name
from qo.engines.postgres.arrays import texts, uuids
from qo.engines.postgres.batches import Batch, columns, completions, is_ordinary, wanted
from qo.engines.postgres.lanes import PostgresLanes
from qo.engines.postgres.pool import Known, LaneGone, PostgresPool, Rows
from qo.engines.postgres.rows import DAMAGED_STATUS, LANE, STATUS_COLUMN, task_of
from qo.engines.postgres.schema import VERSION
from qo.engines.postgres.statements import of_note
from qo.errors import Conflict, OutcomeUnknown, StorageError
from qo.ids import new_token
from qo.model import (
    ANY,
    AUDIT_NOTES,
    NEW,
    UNREADABLE,
    Added,
    Change,
    ClaimRequest,
    NewTask,
    Status,
    Task,
    in_order,
    is_id,
    lane_of,
    release,
)

_MAX_ADD_ATTEMPTS = 10  # the lane of a task may be removed while the task is added
_STEP = 1000  # tasks made ready by one statement
_CLAIM_COLUMNS = 3  # of a claim's answer, not of the task: now, when the next task becomes due, whether it is exact


class ReadTasks(NamedTuple):
    tasks: list[Task]
    has_damage: bool  # some rows were no tasks, and are set aside


class PostgresTable:
    def __init__(self, line: PostgresPool, clock: Clock | None) -> None:
        self._line = line
        self._clock = clock
        self.lanes = PostgresLanes(line)
        self._damage_log = DamageLog()
        self.due_in: float | None = None  # seconds from the last claim to the next task that was not ready then

    def now(self) -> float | None:
        return None if self._clock is None else self._clock()

    # --- add

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        if not tasks:
            return []
        batch = Batch(tasks)
        for _ in range(_MAX_ADD_ATTEMPTS - 1):
            try:
                return await self._add(tasks, batch)
            except LaneGone:
                self.lanes.forget(batch.lanes())
        return await self._add(tasks, batch)

    async def _add(self, tasks: Sequence[NewTask], batch: Batch) -> list[Added]:
        values = await self._columns(batch)
        surely_new = all(task.idempotency_key is None for task in tasks)  # their ids are drawn, not derived

        async def step(doubtful: bool) -> list[Added]:  # noqa: FBT001 - see persist
            if surely_new and not doubtful:
                with suppress(Known):
                    await self._line.once("add_new", values)
                    return [Added(task.id, new=True) for task in tasks]
            rows = await self._line.once("add", values)
            # The try that was cut may have come first, or may even have been at work until now: ask whose they are.
            landed = await self._line.once("added", values) if doubtful else rows
            return answers(tasks, landed, [] if surely_new else await self._line.once("last", values))

        return await self._line.persist(step)

    async def submission(self, tasks: Sequence[NewTask]) -> dict[str, Any]:
        """The parameters of `add` in the caller's transaction.

        The lanes are checked first: an attempt that fails would abort the transaction.
        """
        batch = Batch(tasks)
        await self.lanes.check(batch.lanes())
        return await self._columns(batch)

    async def _columns(self, batch: Batch) -> dict[str, Any]:
        """The parameters of `add`; repeating them repeats the same submission."""
        numbers = await self.lanes.make(batch.lanes())
        submit_id = int(new_token()[:15], 16)
        channel = self._line.address.channel
        return batch.columns(numbers) | {"now": self.now(), "submit_id": submit_id, "channel": channel}

    # --- claim

    async def claim(self, request: ClaimRequest) -> list[Task]:
        async def step(doubtful: bool) -> list[Task]:  # noqa: FBT001 - see persist
            if doubtful or request.is_repeat:
                await self._line.once("await_claim", {"lease_id": request.lease_id})
                mine = await self._line.once("held_under", {"lease_id": request.lease_id, "now": self.now()})
                if mine:
                    tasks = (await self.read_tasks([row[1:] for row in mine])).tasks
                    return in_order(tasks, mine[0][0], lane_of)
            return await self._claim(request)

        return await self._line.persist(step)

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        values, staged = wanted(request), False
        name = "claim" if request.types or request.per_type_limits else "claim_any"
        while True:
            rows = await self._line.once(name, values | {"now": self.now(), "staged": staged})
            now, coming, is_exact = rows[0][:_CLAIM_COLUMNS]
            self.due_in = None if coming is None else coming - now
            if coming is not None and coming <= now and not staged:
                ((moved,),) = await self._line.once("stage", {"now": now, "step": _STEP})
                staged = moved < _STEP  # what is due and still not ready is being written by others: pass it over
            elif not is_exact:
                name = "claim"  # looks at each lane
            else:
                if rows[0][_CLAIM_COLUMNS] is None:
                    return []
                tasks, has_damage = await self.read_tasks([row[_CLAIM_COLUMNS:] for row in rows], is_claim=True)
                if tasks or not has_damage:
                    return in_order(tasks, now, lane_of)

    async def read_tasks(self, rows: Rows, *, is_claim: bool = False) -> "ReadTasks":
        """Tasks that cannot be read are set aside, so that the next look does not meet them.

        If that is refused, the others of a claim are handed back: its caller gets none of them.
        """
        lanes = await self.lanes.look_up(row[LANE] for row in rows)
        tasks, damage = list[Task](), dict[str, str]()
        for row in rows:
            try:
                tasks.append(check_stored(task_of(row, lanes[row[LANE]])))
            except (*UNREADABLE, KeyError) as error:
                if row[STATUS_COLUMN] != DAMAGED_STATUS:
                    damage[row[0]] = f"its row does not decode: {error!r}"
        if damage:
            try:
                await self._set_aside(damage)
            except StorageError:
                if is_claim:
                    with suppress(StorageError):  # the lease expires then
                        await self.apply([release(task, None) for task in tasks])
                raise
        return ReadTasks(tasks, bool(damage))

    async def _set_aside(self, damage: Damage) -> None:
        ((stored,),) = await self._line.read("stored_format", {})
        check_known_format(stored, VERSION, next(iter(damage.values())))
        known = [status.value for status in Status]
        await self._line.write("set_aside", {"id": uuids(sorted(damage)), "statuses": texts(known)})
        for task_id, problem in damage.items():
            with suppress(Conflict):
                await self.write_note(note_name(task_id), encode_damage(task_id, problem), NEW)
        self._damage_log.report(damage)

    # --- apply

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Ordinary completions go the short way. Whatever that leaves, a refused one too, goes the thorough way."""
        known = _known([change.id for change in changes])
        if ordinary := [change for change in changes if is_ordinary(change) and change.id in known]:
            rows, in_doubt = await self._line.write("complete", completions(ordinary) | {"now": self.now()})
            written = {task_id for (task_id,) in rows}
        else:
            written, in_doubt = set(), False
        if rest := [change for change in changes if change.id not in written and change.id in known]:
            more = columns(rest) | {"now": self.now(), "channel": self._line.address.channel}
            rows, doubtful = await self._line.write("change", more)
            written.update(task_id for (task_id,) in rows)
            self._trust(doubtful or in_doubt, written, rest)
        return [change.id in written for change in changes]

    def _trust(self, doubtful: bool, written: set[str], changes: Sequence[Change]) -> None:  # noqa: FBT001
        """A change that was cut short and is refused now may have been refused before, or written and overwritten."""
        if doubtful and any(change.id not in written for change in changes):
            raise OutcomeUnknown(
                f"{self._line.address.shown}: the connection was cut in the middle of a change; look again"
            )

    # --- delete and notes

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        known = _known(ids)
        rows, doubtful = await self._line.write("delete", {"id": uuids(sorted(known))})
        gone = {task_id for (task_id,) in rows}
        if doubtful and gone != known:
            raise OutcomeUnknown(
                f"{self._line.address.shown}: the connection was cut in the middle of deleting; look again"
            )
        return [task_id in gone for task_id in ids]

    async def write_note(self, name: str, data: bytes, expected: str) -> str:
        version = new_token()  # random: a version must stay new even after its note was dropped
        how = of_note({NEW: "create_note", ANY: "put_note"}.get(expected, "replace_note"), name)
        if expected == NEW and name.startswith(AUDIT_NOTES):
            how = "add_audit_note"  # roles that act may add records, and nothing else
        values = {"name": name, "data": data, "version": version, "expected": expected}
        rows, doubtful = await self._line.write(how, values)
        if rows:
            return version
        if doubtful:
            raise OutcomeUnknown(f"note {name!r}: the connection was cut while it was written; read it again")
        raise Conflict(f"note {name!r} was written by someone else")

    async def drop_note(self, name: str) -> None:
        await self._line.write(of_note("drop_note", name), {"name": name})


def answers(tasks: Sequence[NewTask], rows: Rows, followers: Rows) -> list[Added]:
    landed = {task_id for (task_id, *_) in rows}
    last: dict[str, str] = {first: follower for first, follower, *_ in followers}
    return [_answer(task, landed, last) for task in tasks]


def _answer(task: NewTask, landed: set[str], last: dict[str, str]) -> Added:
    for task_id in (task.next_id, task.id):
        if task_id in landed:
            return Added(task_id, new=True)
    return Added(task.id if task.idempotency_key is None else last.get(task.id, task.id), new=False)


def _known(ids: Iterable[str]) -> set[str]:
    """Without what cannot be an id: no task has it."""
    return {task_id for task_id in ids if is_id(task_id)}
