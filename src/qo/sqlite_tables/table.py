"""The two rules on one connection. The caller begins and commits the transaction."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from qo.damage import Damage, check_known_format, encode_damage, note_name
from qo.errors import Conflict, StorageError
from qo.ids import new_token
from qo.model import (
    ANY,
    FINISHED,
    NEW,
    Added,
    Change,
    ClaimRequest,
    NewTask,
    Status,
    Task,
    admit,
    apply,
    created,
    in_order,
    is_repeat,
    kind_of,
    lane_of,
    stamps,
)
from qo.sqlite_tables.damage import BadRow, DamageFound
from qo.sqlite_tables.header import VERSION
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.ready_lanes import ReadyLanes
from qo.sqlite_tables.rows import (
    BY_ID,
    BY_N,
    Brief,
    damaged_rows,
    encode_list,
    encode_retry,
    plain,
    read_briefs,
    read_tasks,
)
from qo.sqlite_tables.statements import SQL, write_rows

# Plain strings, because hashing an enum member calls Python code.
_PENDING, _RUNNING = plain(Status.PENDING), plain(Status.RUNNING)
_STAGE_SIZE = 1000  # tasks made ready by one statement
_MIN_READ = 4  # tasks of each lane that a claim from several lanes reads first

_numbers = msgspec.json.Decoder(list[int])
_any_list = msgspec.json.Decoder(list[Any])
_names = msgspec.json.Decoder(set[str])
_pairs = msgspec.json.Decoder(list[tuple[str, str]])
_candidates = msgspec.json.Decoder(list[tuple[int, list[tuple[float, float, int]]]])
_Head = tuple[float, float, int, int]  # the highest effective rank in its lane so far, rank, number, lane


class SqliteTable:
    """A call may raise QoError; if it has written something before, the writer rolls it back."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._last = 0  # the highest number in use
        self._last_before = 0  # the same when the transaction began
        self._staged = False
        self._last_change = 0  # the number of the last change to a lane's ready tasks, in `lanes`
        self._removals = 0  # the number of lane removals
        self._version: int | None = None  # the data version after the last commit; None: read everything again
        self._changed: set[int] = set()  # lanes whose ready tasks this transaction has changed
        self._extended: set[int] = set()  # lanes to which it has added tasks, possibly behind their first one
        self._own_changes: set[int] = set()  # both, since the last claim
        self._thinned: set[int] = set()  # lanes from which tasks were deleted
        self.lanes = SqliteLanes(db)
        self._ready = ReadyLanes(db, self.lanes)
        self.tally: Counter[tuple[int, str]] = Counter()  # what this transaction adds to the counts
        self.claimable = False  # this transaction added or scheduled tasks

    @property
    def is_outdated(self) -> bool:
        """Whether another connection may have written since the last commit. Ask in a new transaction."""
        return self._version is None or self._db.data_version() != self._version

    def begin(self) -> None:
        """Call in a new transaction. What is read stays valid until its end, since no other connection can write."""
        if self.is_outdated:
            self._catch_up()
        self._last_before = self._last
        self._staged = False
        self._changed.clear()
        self._extended.clear()
        self._thinned.clear()
        self.tally.clear()
        self.claimable = False

    def _catch_up(self) -> None:
        self._last, last_lane, self._last_change, removals = self._db.execute(SQL["last"]).get
        if removals != self._removals:
            self._removals = removals
            self.lanes.forget()
        self.lanes.catch_up(last_lane)

    def undo(self, tally: Counter[tuple[int, str]]) -> None:
        """Restore the counts from before the last call, which was rolled back."""
        self.forget()
        self.lanes.refresh()
        self.tally = tally
        self._staged = False

    def forget(self) -> None:
        """Clear everything learned in a transaction that was rolled back."""
        self._version = None
        self.lanes.forget()
        self._ready.forget()

    def keep(self) -> None:
        """Call after the commit: what was learned stays valid until another connection writes."""
        self._version = None if self._thinned else self._db.data_version()

    def finish(self) -> None:
        """Call at the end of a transaction: writes the counts, and marks the lanes that others must read again."""
        write_rows(self._db, "count_up", [(lane, status, n) for (lane, status), n in self.tally.items() if n])
        if self._thinned:
            self._remove_empty_lanes(encode_list(sorted(self._thinned)))
        marked = 0
        if self._changed:
            self._db.execute(SQL["mark_changed"], (self._last_change + 1, encode_list(sorted(self._changed))))
            marked = self._db.changes()
        if behind := self._extended - self._changed:
            lanes = encode_list(sorted(behind))
            self._db.execute(SQL["mark_new_heads"], (self._last_change + 1, lanes, self._last_before))
            marked += self._db.changes()
        if marked:
            if self._ready.known == self._last_change:
                self._ready.known += 1
            self._last_change += 1

    def _remove_empty_lanes(self, lanes: str) -> None:
        self._db.execute(SQL["remove_counts"], (lanes,))
        self._db.execute(SQL["remove_lanes"], (lanes,))
        if self._db.changes():
            self._db.execute("UPDATE lane_removals SET count = count + 1")
            # A removed lane may have carried the number of the last change, and numbers are not reused.
            self._change_lanes([self._db.execute("SELECT max(n) FROM lanes").get])

    def _change_lanes(self, lanes: Iterable[int]) -> None:
        self._changed.update(lanes)
        self._own_changes.update(lanes)

    # --- add

    def add(self, tasks: Sequence[NewTask], now: float) -> list[Added]:
        if not tasks:
            return []
        if len(tasks) == 1 and tasks[0].idempotency_key is None:
            return [self._add_one(tasks[0], now)]
        at = stamps(now, len(tasks))
        keyed = [new.id for new in tasks if new.idempotency_key is not None]
        followers = self._followers(keyed) if keyed else {}
        without_followers = [(new, instant) for new, instant in zip(tasks, at, strict=True) if new.id not in followers]
        inserted = self._insert([created(new, instant, lead=now - instant) for new, instant in without_followers], now)
        if not followers and len(inserted) == len(tasks):
            return [Added(new.id, new=True) for new in tasks]
        there = {new.id: followers.get(new.id, new.id) for new in tasks if new.id not in inserted}
        stored = {task.id: task for task in read_tasks(self._db, BY_ID, [*there.values()], self.lanes).values()}
        return [
            Added(new.id, new=True)
            if new.id in inserted
            else self._add_existing(new, instant, there[new.id], stored.get(there[new.id]), now)
            for new, instant in zip(tasks, at, strict=True)
        ]

    def _add_one(self, new: NewTask, now: float) -> Added:
        """Add a task without an idempotency key. Submits from plain code come one by one, so this takes few steps."""
        task, n = created(new, now), self._last + 1
        lane = self._lane(task)
        self._db.execute(SQL["insert"], (n, task.id, lane, *_described(task, now)))
        if not self._db.changes():  # an earlier attempt of this submission inserted it
            return Added(task.id, new=False)
        self._db.execute(SQL["record_new"], (n, n))
        self._last = n
        self.claimable = True
        self.tally[lane, _PENDING] += 1
        self._extended.add(lane)
        self._own_changes.add(lane)
        return Added(task.id, new=True)

    def _followers(self, ids: Sequence[str]) -> dict[str, str]:
        """By id of the first task under an idempotency key: the last task under it, if there are several."""
        return dict(_pairs.decode(self._db.execute(SQL["followers"], (encode_list(ids),)).get))

    def _insert(self, tasks: Sequence[Task], now: float) -> set[str]:
        """Insert new tasks and return the ids inserted. Existing ids are skipped."""
        if not tasks:
            return set()
        first = self._last + 1
        self._last = last = self._last + len(tasks)
        lanes = [self._lane(task) for task in tasks]
        numbered = zip(range(first, last + 1), tasks, lanes, strict=True)
        written = write_rows(
            self._db, "insert", [(n, task.id, lane, *_described(task, now)) for n, task, lane in numbered]
        )
        self._db.execute(SQL["record_new"], (first, last))
        self.claimable = True
        inserted = {task.id for task in tasks}
        if written < len(tasks):
            inserted = _names.decode(self._db.execute(SQL["landed"], (first, last)).get)
            lanes = [lane for lane, task in zip(lanes, tasks, strict=True) if task.id in inserted]
        for lane, size in Counter(lanes).items():
            self.tally[lane, _PENDING] += size
        self._extended.update(lanes)
        self._own_changes.update(lanes)
        return inserted

    def _add_existing(self, new: NewTask, at: float, last: str, existing: Task | None, now: float) -> Added:
        """Decide about a task whose id, or a successor of it, exists."""
        # A damaged task that was set aside is not read, and keeps its id.
        task = None if existing is None else admit(existing, new, at, lead=now - at)
        if task is None or not self._insert([task], now):  # an earlier attempt of this submission inserted it
            return Added(last, new=False)
        self._db.execute(SQL["follow"], (new.id, task.id))
        return Added(task.id, new=True)

    def _lane(self, task: Task) -> int:
        return self.lanes.number(task.queue, task.type, task.needs, task.priority)

    # --- claim

    def stage(self, now: float) -> None:
        """Make due tasks ready, in steps: one statement must not move a million tasks."""
        moved = 0 if self._staged else _STAGE_SIZE
        while moved == _STAGE_SIZE:
            lanes = self._db.execute(SQL["coming_lanes"], (now, _STAGE_SIZE)).get
            if lanes == "[]":
                break
            self._change_lanes([lane for lane in _any_list.decode(lanes) if isinstance(lane, int)])
            self._db.execute(SQL["stage"], (now, _STAGE_SIZE))
            moved = self._db.changes()
        self._staged = True

    def claim(self, request: ClaimRequest, now: float) -> list[Task]:
        if request.is_repeat:
            held = _numbers.decode(self._db.execute(SQL["held_under"], (request.lease_id,)).get)
            if held:
                return in_order(read_tasks(self._db, BY_N, held, self.lanes).values(), now, lane_of)
        self.stage(now)
        chosen = self._choose(request, now)
        if not chosen:
            return []
        numbers = encode_list(chosen)
        started_at = None if request.is_prefetch else now
        self._db.execute(
            SQL["claim"], (request.lease_id, request.worker_id, now + request.lease, now, numbers, started_at)
        )
        self._record(numbers)
        tasks = read_tasks(self._db, BY_N, chosen, self.lanes)
        return [tasks[n] for n in chosen]

    def _record(self, numbers: str) -> None:
        """Add an event for each. Raises DamageFound, without rows, if an event of that version exists."""
        try:
            self._db.execute(SQL["record"], (numbers,))
        except apsw.ConstraintError as error:
            raise DamageFound([]) from error

    def claim_each(self, requests: Sequence[ClaimRequest], now: float) -> list[list[Task]]:
        """Serve claims that differ only in their leases: tasks are selected once, and distributed in order."""
        self.stage(now)
        chosen = self._choose(replace(requests[0], limit=sum(max(0, request.limit) for request in requests)), now)
        left = iter(chosen)
        hands = [list(islice(left, max(0, request.limit))) for request in requests]
        rows = [
            (n, request.lease_id, request.worker_id, now + request.lease, now, None if request.is_prefetch else now)
            for request, hand in zip(requests, hands, strict=True)
            for n in hand
        ]
        write_rows(self._db, "claim_each", rows)
        self._record(encode_list(chosen))
        tasks = read_tasks(self._db, BY_N, chosen, self.lanes)
        return [[tasks[n] for n in hand] for hand in hands]

    def _choose(self, request: ClaimRequest, now: float) -> list[int]:
        """The numbers of the first tasks of all eligible lanes, in order. Raises DamageFound."""
        try:
            return self._first(request, now)
        except msgspec.DecodeError as error:  # a lane or rank is not a number
            bad = damaged_rows(self._db, self.lanes)
            if not bad:
                raise
            raise DamageFound(bad) from error

    def _first(self, request: ClaimRequest, now: float) -> list[int]:
        lanes = self._ready.first(request, now, self._own_changes)
        self._own_changes.clear()
        if not lanes:
            return []
        size = request.limit if len(lanes) == 1 else max(_MIN_READ, 2 * request.limit // len(lanes))
        promoted = now if len(lanes) > 1 else float("-inf")  # within one lane the rank decides
        heads = self._heads(lanes, size, promoted)
        first = self._within_limits(heads, request)
        last = first[-1] if len(first) == request.limit else None
        # If all tasks read from a lane are among the first, the lane may hold more of them.
        short = [lane for lane, some in heads.items() if len(some) == size and (last is None or some[-1] <= last)]
        if short and size < request.limit:
            first = self._within_limits(heads | self._heads(short, request.limit, promoted), request)
        taken = Counter(lane for *_, lane in first)
        for lane, number in taken.items():
            self.tally[lane, _PENDING] -= number
            self.tally[lane, _RUNNING] += number
        self._change_lanes(taken)
        return [n for _, _, n, _ in first]

    def _heads(self, lanes: Sequence[int], size: int, promoted: float) -> dict[int, list[_Head]]:
        """The first `size` tasks of each lane, in order."""
        heads = {}
        for lane, some in _candidates.decode(self._db.execute(SQL["first"], (encode_list(lanes), size, promoted)).get):
            reached = accumulate((effective for effective, _, _ in some), max)
            heads[lane] = [(highest, rank, n, lane) for highest, (_, rank, n) in zip(reached, some, strict=True)]
        return heads

    def _within_limits(self, heads: Mapping[int, list[_Head]], request: ClaimRequest) -> list[_Head]:
        """The first tasks of all lanes, within the limits per type."""
        first = sorted(head for some in heads.values() for head in some)
        if request.per_type_limits:
            taken: Counter[str] = Counter()
            allowed = []
            for head in first:
                type_ = self.lanes[head[3]].type
                taken[type_] += 1
                if taken[type_] <= request.per_type_limits.get(type_, taken[type_]):
                    allowed.append(head)
            first = allowed
        return first[: request.limit]

    # --- apply

    def apply(self, changes: Sequence[Change], now: float) -> list[bool]:
        stored = read_briefs(self._db, [change.id for change in changes])
        rows, answers, transitions, reached, lanes = [], [], list[Brief](), list[str](), set[int]()
        for change in changes:
            brief = stored.get(change.id)
            changed = None if brief is None else apply(brief.task, change, now)
            answers.append(changed is not None or (brief is not None and is_repeat(brief.task, change)))
            if brief is None or changed is None:
                continue
            rows.append(_changed(brief.n, changed, change, now))
            if changed.status is Status.PENDING or brief.task.status is Status.PENDING:
                lanes.add(brief.lane)
            if changed.status is not Status.RUNNING:  # renewals are not transitions
                transitions.append(brief)
                reached.append(plain(changed.status))
        write_rows(self._db, "change", rows)
        if transitions:
            self._record(encode_list([brief.n for brief in transitions]))
            self.tally.subtract(Counter([(brief.lane, brief.status) for brief in transitions]))
            self.tally.update(zip([brief.lane for brief in transitions], reached, strict=True))
        self._change_lanes(lanes)
        self.claimable = self.claimable or any(row[2] is not None for row in rows)
        return answers

    # --- damage

    def set_aside(self, bad: Sequence[BadRow]) -> Damage:
        """Remove damaged rows from every index and write notes about them. Only their status changes.

        If `bad` is empty, all rows are checked. Raises StorageError if none is damaged.
        """
        bad = bad or damaged_rows(self._db, self.lanes)
        if not bad:
            raise StorageError("the events of some tasks do not match them; run `qo doctor`, and restore a copy")
        check_known_format(self._db.execute("PRAGMA user_version").get, VERSION, bad[0].problem)
        self._db.execute(SQL["set_aside"], (encode_list([row.n for row in bad]),))
        for row in bad:
            if self._db.execute("SELECT 1 FROM notes WHERE name = ?", (note_name(row.id),)).get is None:
                self.write_note(note_name(row.id), encode_damage(row.id, row.problem), ANY)
        # The damaged value may be the lane or status under which the row was counted.
        self._db.execute("DELETE FROM tally")
        self._db.execute(SQL["recount"])
        self.tally.clear()
        self._db.execute(SQL["mark_all_changed"], (self._last_change + 1,))
        self._last_change += 1
        self._ready.forget()
        return {row.id: row.problem for row in bad}

    # --- delete and notes

    def delete(self, ids: Sequence[str]) -> list[bool]:
        stored = read_briefs(self._db, ids)
        gone = {task_id: brief for task_id, brief in stored.items() if brief.task.status in FINISHED}
        self.tally.subtract((brief.lane, brief.status) for brief in gone.values())
        self._thinned.update(brief.lane for brief in gone.values())
        numbers = [brief.n for brief in gone.values()]
        aside = self._set_aside_among([task_id for task_id in ids if task_id not in stored])
        for task_id in aside:
            self.drop_note(note_name(task_id))
        encoded = encode_list([*numbers, *aside.values()])
        self._db.execute(SQL["delete_events"], (encoded,))
        self._db.execute(SQL["delete"], (encoded,))
        self._db.execute(SQL["unfollow"], (encode_list([*gone, *aside]),))
        return [task_id in gone or task_id in aside for task_id in ids]

    def _set_aside_among(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of damaged tasks, by id. They are not counted."""
        return dict(self._db.execute(SQL["set_aside_among"], (encode_list(ids),))) if ids else {}

    def write_note(self, name: str, data: bytes, expected: str) -> str:
        stored = self._db.execute("SELECT version FROM notes WHERE name = ?", (name,)).get
        if expected not in {ANY, stored or NEW}:
            raise Conflict(f"note {name!r} was written by another process")
        version = new_token()  # random, so that a version is new even after its note was dropped
        self._db.execute(SQL["write_note"], (name, data, version))
        return version

    def drop_note(self, name: str) -> None:
        self._db.execute("DELETE FROM notes WHERE name = ?", (name,))


def _described(task: Task, now: float) -> tuple[object, ...]:
    """The columns of a new task, in the order of `insert`."""
    return (
        int(task.available_at <= now),
        task.available_at,
        task.rank,
        task.version,
        task.created_at,
        task.updated_at,
        task.priority,
        task.timeout,
        task.max_retries,
        encode_retry(task.retry),
        task.idempotency_key,
        task.trace_id,
        task.run_at,
        task.payload,
    )


def _changed(n: int, task: Task, change: Change, now: float) -> tuple[object, ...]:
    """The columns that a change may set, in the order of `change`."""
    kind = kind_of(change.error, change.failure_kind)
    return (
        n,
        plain(task.status),
        int(task.available_at <= now) if task.status is Status.PENDING else None,
        task.available_at,
        task.rank,
        task.failures,
        task.timeout,
        task.error,
        task.worker_id,
        task.lease_expires_at,
        task.started_at,
        task.completed_at,
        task.updated_at,
        task.version,
        change.result,
        None if kind is None else kind.value,
    )
