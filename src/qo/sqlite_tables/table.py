"""The table of tasks on one connection. The writer begins and commits the transaction."""

from collections import Counter
from collections.abc import Sequence

import apsw
import msgspec

from qo.damage import Damage, check_known_format, encode_damage, note_name
from qo.errors import Conflict, StorageError
from qo.ids import new_token
from qo.model import (
    ANY,
    FINISHED,
    NEW,
    Added,
    Change,
    NewTask,
    Status,
    Task,
    admit,
    apply,
    created,
    is_repeat,
    regrouped,
    stamps,
)
from qo.sqlite_tables.claims import SqliteClaims
from qo.sqlite_tables.rows import (
    BY_ID,
    PENDING,
    BadRow,
    Brief,
    changed_row,
    damaged_rows,
    encode_list,
    new_row,
    plain,
    read_briefs,
    read_tasks,
)
from qo.sqlite_tables.segments import LoadedSegment, SegmentDraft
from qo.sqlite_tables.statements import SQL, write_rows
from qo.sqlite_tables.transaction import TableTransaction

_names = msgspec.json.Decoder(set[str])
_pairs = msgspec.json.Decoder(list[tuple[str, str]])


class SqliteTable:
    """A call may raise QoError; if it has written something before, the writer rolls it back."""

    def __init__(self, transaction: TableTransaction) -> None:
        self._transaction, self._db, self._lanes = transaction, transaction.db, transaction.lanes
        claims = SqliteClaims(transaction)
        self.stage, self.claim, self.claim_of, self.claim_each = (
            claims.stage,
            claims.claim,
            claims.claim_of,
            claims.claim_each,
        )

    @property
    def db(self) -> apsw.Connection:
        """The connection, for work on other tables than those of tasks."""
        return self._db

    def add(self, tasks: Sequence[NewTask], now: float, at: Sequence[float] | None = None) -> list[Added]:
        """Add tasks. `at` are their stamps, if they are a part of a batch whose last stamp is `now`."""
        if not tasks:
            return []
        self._transaction.segments.require([new.id for new in tasks])
        if at is None and len(tasks) == 1 and tasks[0].idempotency_key is None:
            return [self._add_one(tasks[0], now)]
        at = stamps(now, len(tasks)) if at is None else at
        keyed = [new.id for new in tasks if new.idempotency_key is not None]
        followers = self._followers(keyed) if keyed else {}
        self._transaction.segments.require(followers.values())
        without_followers = [(new, instant) for new, instant in zip(tasks, at, strict=True) if new.id not in followers]
        inserted = self._insert([created(new, instant, lead=now - instant) for new, instant in without_followers], now)
        if not followers and len(inserted) == len(tasks):
            return [Added(new.id, new=True) for new in tasks]
        there = {new.id: followers.get(new.id, new.id) for new in tasks if new.id not in inserted}
        stored = {task.id: task for task in read_tasks(self._db, BY_ID, [*there.values()], self._lanes).values()}
        return [
            Added(new.id, new=True)
            if new.id in inserted
            else self._add_existing(new, instant, there[new.id], stored.get(there[new.id]), now)
            for new, instant in zip(tasks, at, strict=True)
        ]

    def _add_one(self, new: NewTask, now: float) -> Added:
        """Add a task without an idempotency key. Submits from plain code come one by one, so this takes few steps."""
        task, n = created(new, now), self._transaction.last + 1
        lane = self._lane(task)
        self._db.execute(SQL["insert"], (n, task.id, lane, *new_row(task, now)))
        if not self._db.changes():  # an earlier attempt of this submission inserted it
            return Added(task.id, new=False)
        self._db.execute(SQL["record_new"], (n, n))
        self._transaction.last = n
        self._transaction.has_claimable = True
        self._transaction.count_changes[lane, PENDING] += 1
        self._transaction.extend_lanes((lane,))
        return Added(task.id, new=True)

    def _followers(self, ids: Sequence[str]) -> dict[str, str]:
        """By id of the first task under an idempotency key: the last task under it, if there are several."""
        return dict(_pairs.decode(self._db.execute(SQL["followers"], (encode_list(ids),)).get))

    def _insert(self, tasks: Sequence[Task], now: float) -> set[str]:
        """Insert new tasks and return the ids inserted. Existing ids are skipped."""
        if not tasks:
            return set()
        first = self._transaction.last + 1
        self._transaction.last = last = self._transaction.last + len(tasks)
        lanes = [self._lane(task) for task in tasks]
        numbered = zip(range(first, last + 1), tasks, lanes, strict=True)
        written = write_rows(
            self._db, "insert", [(n, task.id, lane, *new_row(task, now)) for n, task, lane in numbered]
        )
        self._db.execute(SQL["record_new"], (first, last))
        self._transaction.has_claimable = True
        inserted = {task.id for task in tasks}
        if written < len(tasks):
            inserted = _names.decode(self._db.execute(SQL["inserted_ids"], (first, last)).get)
            lanes = [lane for lane, task in zip(lanes, tasks, strict=True) if task.id in inserted]
        for lane, size in Counter(lanes).items():
            self._transaction.count_changes[lane, PENDING] += size
        self._transaction.extend_lanes(lanes)
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
        return self._lanes.number(task.queue, task.type, task.stored_needs, task.priority)

    # --- apply

    def apply(self, changes: Sequence[Change], now: float) -> list[bool]:
        stored = self._briefs([change.id for change in changes])
        rows, answers, transitions, lanes = [], [], list[Brief](), set[int]()
        reached: list[tuple[int, str]] = []  # the lane and status of each transition
        logs: dict[int, str] = {}  # of the event of each task, by its number
        for change in changes:
            brief = stored.get(change.id)
            changed = None if brief is None else apply(brief.task, change, now)
            answers.append(changed is not None or (brief is not None and is_repeat(brief.task, change)))
            if brief is None or changed is None:
                continue
            rows.append(changed_row(brief.n, changed, change, now))
            if change.payload is not None:
                self._db.execute("UPDATE tasks SET payload = ? WHERE n = ?", (change.payload, brief.n))
            lane = self._move(brief, change)
            if changed.status is Status.PENDING or brief.task.status is Status.PENDING:
                lanes |= {brief.lane, lane}
            if changed.status is not Status.RUNNING:  # renewals are not transitions
                transitions.append(brief)
                reached.append((lane, plain(changed.status)))
                if change.log is not None:
                    logs[brief.n] = change.log
        write_rows(self._db, "change", rows)
        if transitions:
            unlogged = [brief.n for brief in transitions if brief.n not in logs]
            self._transaction.record(encode_list(unlogged), logs)
            self._transaction.count_changes.subtract(Counter([(brief.lane, brief.status) for brief in transitions]))
            self._transaction.count_changes.update(reached)
        self._transaction.change_lanes(lanes)
        self._transaction.has_claimable = self._transaction.has_claimable or any(row[2] is not None for row in rows)
        return answers

    def _briefs(self, ids: Sequence[str]) -> dict[str, Brief]:
        """The tasks with these ids, by id. Raises DamageFound, or SegmentNeeded."""
        stored = read_briefs(self._db, ids)
        if len(stored) < len(ids):
            self._transaction.segments.require([task_id for task_id in ids if task_id not in stored])
        return stored

    def _move(self, brief: Brief, change: Change) -> int:
        """Move a task to the lane of another priority or group, and return the lane."""
        if change.priority is None and change.group is None:
            return brief.lane
        queue, type_, needs, priority = self._lanes[brief.lane]
        needs = needs if change.group is None else regrouped(needs, change.group)
        priority = priority if change.priority is None else change.priority
        lane = self._lanes.number(queue, type_, needs, priority)
        if lane != brief.lane:
            self._db.execute(SQL["move"], (brief.n, lane, priority))
            self._transaction.thinned.add(brief.lane)
        return lane

    # --- segments

    def freeze(self, draft: SegmentDraft, name: str) -> bool:
        """Replace tasks by a segment. False, and nothing is changed, if one of them has changed since it was read."""
        if not self._transaction.segments.freeze(draft, name):
            return False
        if draft.lane is not None:
            self._transaction.change_lanes([draft.lane])
        return True

    def thaw(self, loaded: LoadedSegment) -> bool:
        """Move the tasks of a segment back into the tables. False if they are there already."""
        if not self._transaction.segments.thaw(loaded):
            return False
        if loaded.segment.lane is not None:
            self._transaction.change_lanes([loaded.segment.lane])
            self._transaction.has_claimable = True
        return True

    def divide(self, loaded: LoadedSegment, parts: Sequence[tuple[SegmentDraft, str]]) -> bool:
        """Replace a segment by smaller ones. False if its tasks are in the tables."""
        return self._transaction.segments.divide(loaded, parts)

    # --- damage

    def set_aside(self, bad: Sequence[BadRow]) -> Damage:
        """Remove damaged rows from every index and write notes about them. Only their status changes.

        If `bad` is empty, all rows are checked. Raises StorageError if none is damaged.
        """
        bad = bad or damaged_rows(self._db, self._lanes)
        if not bad:
            raise StorageError("the events of some tasks do not match them; run `qo doctor`, and restore a copy")
        check_known_format(self._db.execute("PRAGMA user_version").get, self._transaction.known_version, bad[0].problem)
        self._db.execute(SQL["set_aside"], (encode_list([row.n for row in bad]),))
        for row in bad:
            if self._db.execute("SELECT 1 FROM notes WHERE name = ?", (note_name(row.id),)).get is None:
                self.write_note(note_name(row.id), encode_damage(row.id, row.problem), ANY)
        # The damaged value may be the lane or status under which the row was counted.
        # Without a condition SQLite drops all rows together, which a change recorder does not see.
        self._db.execute("DELETE FROM tally WHERE true")
        self._db.execute(SQL["recount"])
        self._transaction.count_changes.clear()
        self._db.execute(SQL["mark_all_changed"], (self._transaction.last_change + 1,))
        self._transaction.last_change += 1
        self._transaction.ready.forget()
        self._transaction.has_changed_all = True
        return {row.id: row.problem for row in bad}

    # --- delete and notes

    def delete(self, ids: Sequence[str]) -> list[bool]:
        stored = self._briefs(ids)
        gone = {task_id: brief for task_id, brief in stored.items() if brief.task.status in FINISHED}
        self._transaction.count_changes.subtract((brief.lane, brief.status) for brief in gone.values())
        self._transaction.thinned.update(brief.lane for brief in gone.values())
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
