"""Writes: each call is one statement, or a few. A statement whose connection was lost is repeated."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from qo.clock import Clock
from qo.damage import Damage, DamageLog, check_known_format, check_stored, encode_damage, note_name
from qo.engines.postgres.arrays import texts, uuids
from qo.engines.postgres.lanes import LaneKey, PostgresLanes
from qo.engines.postgres.pool import LaneGone, PostgresPool, Rows, TaskExists
from qo.engines.postgres.rows import (
    DAMAGED_STATUS,
    LANE_COLUMN,
    STATUS_COLUMN,
    AddBatch,
    change_parameters,
    claim_parameters,
    completion_parameters,
    is_plain_completion,
    task_of,
)
from qo.engines.postgres.statements import VERSION, note_statement
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
    has_group_limits,
    in_order,
    is_id,
    lane_of,
    regrouped,
    release,
)

_MAX_ADD_ATTEMPTS = 10  # the lane of a task may be removed while the task is added
_STAGE_SIZE = 1000  # tasks that one statement makes ready
_CLAIM_COLUMNS = 3  # before those of the task: now, when the next task becomes due, whether the order is exact


class ReadTasks(NamedTuple):
    tasks: list[Task]
    has_gaps: bool  # some rows are omitted: they were set aside as damaged, or have changed since they were read


class PostgresTable:
    def __init__(self, pool: PostgresPool, clock: Clock | None) -> None:
        self._pool = pool
        self._clock = clock
        self.lanes = PostgresLanes(pool)
        self._damage_log = DamageLog()
        self.due_in: float | None = None  # seconds from the last claim until the next delayed task became due

    def now(self) -> float | None:
        """The time of a test's clock; None: the server's clock applies."""
        return None if self._clock is None else self._clock()

    # --- add

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        if not tasks:
            return []
        batch = AddBatch(tasks)
        for _ in range(_MAX_ADD_ATTEMPTS - 1):
            try:
                return await self._add(tasks, batch)
            except LaneGone:
                self.lanes.forget(batch.lanes())
        return await self._add(tasks, batch)

    async def _add(self, tasks: Sequence[NewTask], batch: AddBatch) -> list[Added]:
        values = await self._add_parameters(batch)
        has_random_ids = all(task.idempotency_key is None for task in tasks)

        async def attempt(may_be_done: bool) -> list[Added]:  # noqa: FBT001 - see repeat_if_lost
            if has_random_ids and not may_be_done:
                with suppress(TaskExists):
                    await self._pool.run("add_new", values)
                    return [Added(task.id, new=True) for task in tasks]
            inserted = await self._pool.run("add", values)
            if may_be_done:  # an earlier attempt may have inserted tasks, even during this one
                inserted = await self._pool.run("added", values)
            return added_from(tasks, inserted, [] if has_random_ids else await self._pool.run("last", values))

        return await self._pool.repeat_if_lost(attempt)

    async def parameters_for_transaction(self, tasks: Sequence[NewTask]) -> dict[str, Any]:
        """The parameters of `add` in the caller's transaction.

        The lanes are checked first: an attempt that fails would abort the transaction.
        """
        batch = AddBatch(tasks)
        await self.lanes.check(batch.lanes())
        return await self._add_parameters(batch)

    async def _add_parameters(self, batch: AddBatch) -> dict[str, Any]:
        """The parameters of `add`; repeating them repeats the same submission."""
        numbers = await self.lanes.make(batch.lanes())
        submit_id = int(new_token()[:15], 16)
        channel = self._pool.address.channel
        return batch.parameters(numbers) | {"now": self.now(), "submit_id": submit_id, "channel": channel}

    # --- claim

    async def claim(self, request: ClaimRequest) -> list[Task]:
        async def attempt(may_be_done: bool) -> list[Task]:  # noqa: FBT001 - see repeat_if_lost
            if may_be_done or request.is_repeat:
                await self._pool.run("await_claim", {"lease_id": request.lease_id})
                held = await self._pool.run("held_under", {"lease_id": request.lease_id, "now": self.now()})
                if held:
                    tasks = (await self.read_tasks([row[1:] for row in held])).tasks
                    return in_order(tasks, held[0][0], lane_of)
            return await self._claim(request)

        return await self._pool.repeat_if_lost(attempt)

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        values, is_staged = claim_parameters(request), False
        name = _claim_statement(request)
        while True:
            rows = await self._pool.run(name, values | {"now": self.now(), "is_staged": is_staged})
            now, next_due_at, is_exact = rows[0][:_CLAIM_COLUMNS]
            self.due_in = None if next_due_at is None else next_due_at - now
            if next_due_at is not None and next_due_at <= now and not is_staged:
                ((staged,),) = await self._pool.run("stage", {"now": now, "step": _STAGE_SIZE})
                is_staged = staged < _STAGE_SIZE  # tasks that are still due are locked by other transactions
            elif not is_exact:
                name = "claim"  # reads each lane
            else:
                if rows[0][_CLAIM_COLUMNS] is None:
                    return []
                tasks, has_gaps = await self.read_tasks([row[_CLAIM_COLUMNS:] for row in rows], is_claim=True)
                if tasks or not has_gaps:
                    return in_order(tasks, now, lane_of)

    async def read_tasks(self, rows: Rows, *, is_claim: bool = False) -> ReadTasks:
        """Decode rows. Tasks that cannot be decoded are set aside, so that the next read does not find them.

        If setting them aside fails, the other tasks of a claim are released, because its caller gets none of them.
        """
        lanes = await self.lanes.look_up(row[LANE_COLUMN] for row in rows)
        unknown = {row[0] for row in rows if row[LANE_COLUMN] not in lanes}
        changed = unknown - await self._without_lane(unknown)
        tasks, damage = list[Task](), dict[str, str]()
        for row in rows:
            if row[0] in changed:
                continue
            try:
                tasks.append(check_stored(task_of(row, lanes[row[LANE_COLUMN]])))
            except (*UNREADABLE, KeyError) as error:
                if row[STATUS_COLUMN] != DAMAGED_STATUS:
                    damage[row[0]] = f"its row does not decode: {error!r}"
        if damage:
            try:
                await self._set_aside(damage)
            except StorageError:
                if is_claim:
                    with suppress(StorageError):  # if this fails too, the lease expires
                        await self.apply([release(task, None) for task in tasks])
                raise
        return ReadTasks(tasks, bool(damage or changed))

    async def _without_lane(self, ids: set[str]) -> set[str]:
        """Those of these tasks whose lane does not exist. Others were deleted with their lanes after they were read."""
        if not ids:
            return set()
        return {task_id for (task_id,) in await self._pool.read("without_lane", {"id": uuids(sorted(ids))})}

    async def _set_aside(self, damage: Damage) -> None:
        ((stored,),) = await self._pool.read("stored_format", {})
        check_known_format(stored, VERSION, next(iter(damage.values())))
        known = [status.value for status in Status]
        rows, _ = await self._pool.write("set_aside", {"id": uuids(sorted(damage)), "statuses": texts(known)})
        marked = {task_id: damage[task_id] for (task_id,) in rows}
        for task_id, problem in marked.items():
            with suppress(Conflict):
                await self.write_note(note_name(task_id), encode_damage(task_id, problem), NEW)
        self._damage_log.report(marked)

    # --- apply

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Apply plain completions with the fast statement, and all other changes with the general one.

        A completion that the fast statement does not write is tried again with the general one.
        """
        valid = _valid_ids(change.id for change in changes)
        written, may_be_done = set[str](), False
        if plain := [change for change in changes if is_plain_completion(change) and change.id in valid]:
            values = completion_parameters(plain) | {"now": self.now()}
            rows, may_be_done = await self._pool.write("complete", values)
            written.update(task_id for (task_id,) in rows)
        if rest := [change for change in changes if change.id not in written and change.id in valid]:
            try:
                is_repeated = await self._change(rest, written)
            except OutcomeUnknown:
                raise
            except StorageError as error:
                if not written and not may_be_done:
                    raise
                raise OutcomeUnknown(f"{len(written)} of {len(changes)} changes are written, then: {error}") from error
            if (may_be_done or is_repeated) and any(change.id not in written for change in rest):
                # An attempt that lost its connection may have written the change, and another process a later one.
                raise OutcomeUnknown(
                    f"{self._pool.address.shown_url}: the connection was lost during a change; read the tasks again"
                )
        return [change.id in written for change in changes]

    async def _change(self, changes: Sequence[Change], written: set[str]) -> bool:
        """Run `change`, and add the ids of changed tasks to `written`. Returns whether it was repeated.

        A lane that tasks move to may be removed before they are written: then it is created again.
        """
        is_repeated, left = False, list(changes)
        for _ in range(_MAX_ADD_ATTEMPTS):
            keys = await self._new_lanes(left)
            try:
                numbers = await self.lanes.make(keys.values()) if keys else {}
                lanes = {task_id: numbers[key].lane for task_id, key in keys.items()}
                values = change_parameters(left, lanes) | {"now": self.now(), "channel": self._pool.address.channel}
                rows, was_repeated = await self._pool.write("change", values)
            except LaneGone:
                self.lanes.forget(keys.values())
                continue
            written.update(task_id for (task_id,) in rows)
            is_repeated = is_repeated or was_repeated
            refused = {task_id: n for task_id, n in lanes.items() if task_id not in written}
            gone = await self.lanes.removed(refused.values())
            left = [change for change in left if refused.get(change.id) in gone]
            if not left:
                return is_repeated
        raise StorageError(f"{self._pool.address.shown_url}: the lanes of tasks keep being removed; try again")

    async def _new_lanes(self, changes: Iterable[Change]) -> dict[str, LaneKey]:
        """The lanes of tasks that get another priority or group. Lanes that were removed are forgotten."""
        moved = {change.id: change for change in changes if change.priority is not None or change.group is not None}
        if not moved:
            return {}
        rows = await self._pool.read("get", {"id": uuids(sorted(moved))})
        lanes = await self.lanes.look_up(row[LANE_COLUMN] for row in rows)
        old = {row[0]: lanes[row[LANE_COLUMN]] for row in rows if row[LANE_COLUMN] in lanes}
        keys = {task_id: _moved(lane, moved[task_id]) for task_id, lane in old.items()}
        await self.lanes.check(keys.values())
        return keys

    # --- delete and notes

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        valid = _valid_ids(ids)
        rows, may_be_done = await self._pool.write("delete", {"id": uuids(sorted(valid))})
        deleted = {task_id for (task_id,) in rows}
        if may_be_done and deleted != valid:
            raise OutcomeUnknown(
                f"{self._pool.address.shown_url}: the connection was lost during a deletion; read the tasks again"
            )
        return [task_id in deleted for task_id in ids]

    async def write_note(self, name: str, data: bytes, expected: str) -> str:
        version = new_token()  # random, so that no version is used again after its note was dropped
        statement = note_statement({NEW: "create_note", ANY: "put_note"}.get(expected, "replace_note"), name)
        if expected == NEW and name.startswith(AUDIT_NOTES):
            statement = "add_audit_note"  # most roles may only add audit records
        values = {"name": name, "data": data, "version": version, "expected": expected}
        rows, may_be_done = await self._pool.write(statement, values)
        if rows:
            return version
        if may_be_done:
            raise OutcomeUnknown(f"note {name!r}: the connection was lost while it was written; read it again")
        raise Conflict(f"note {name!r} was written by another process")

    async def drop_note(self, name: str) -> None:
        await self._pool.write(note_statement("drop_note", name), {"name": name})


def _claim_statement(request: ClaimRequest) -> str:
    if has_group_limits(request):
        return "claim_grouped"
    return "claim" if request.types or request.per_type_limits else "claim_any"


def added_from(tasks: Sequence[NewTask], inserted: Rows, last: Rows) -> list[Added]:
    """The answer of an add: `inserted` has the ids that are new, `last` the last ids under idempotency keys."""
    new_ids = {task_id for (task_id, *_) in inserted}
    last_ids: dict[str, str] = {first: last_id for first, last_id, *_ in last}
    return [_added(task, new_ids, last_ids) for task in tasks]


def _added(task: NewTask, new_ids: set[str], last_ids: dict[str, str]) -> Added:
    for task_id in (task.next_id, task.id):
        if task_id in new_ids:
            return Added(task_id, new=True)
    return Added(task.id if task.idempotency_key is None else last_ids.get(task.id, task.id), new=False)


def _valid_ids(ids: Iterable[str]) -> set[str]:
    """Omits texts that are not ids, and therefore name no task."""
    return {task_id for task_id in ids if is_id(task_id)}


def _moved(lane: LaneKey, change: Change) -> LaneKey:
    """The lane of a task after a change of its priority or group."""
    queue, type_, needs, priority = lane
    needs = needs if change.group is None else regrouped(needs, change.group)
    return queue, type_, needs, priority if change.priority is None else change.priority
