"""The state of one transaction, and what a connection knows from earlier ones."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import apsw
import msgspec

from qo.model import ClaimRequest, LaneHead, LaneHeads, LaneIdentity, eligibility
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.rows import PENDING, DamageFound, encode_list
from qo.sqlite_tables.segments import SegmentTransaction
from qo.sqlite_tables.statements import SQL, write_rows
from qo.sqlite_tables.unindexed import UnindexedTasks

_heads = msgspec.json.Decoder(list[tuple[int, tuple[float, int, float] | None]])
_any_list = msgspec.json.Decoder(list[Any])


class ReadyLanes:
    """The first ready task of each lane. Only lanes that changed since the last read are read again."""

    def __init__(self, db: apsw.Connection, lanes: SqliteLanes) -> None:
        self._db, self._lanes = db, lanes
        self._heads: LaneHeads[int] = LaneHeads()
        self.known = -1  # the number of the last change that was read
        self._removals = 0  # the number of lane removals by then

    def forget(self) -> None:
        """Clear the cache, because its content may have been rolled back."""
        self._heads.clear()
        self.known = -1

    def forget_changes(self, last: int, removed: Iterable[int]) -> None:
        """Read again what changed after the change number `last`, and drop lanes that do not exist."""
        self.known = min(self.known, last)
        for number in removed:
            self._heads.remove(number)

    def has_any(self, request: ClaimRequest, now: float) -> bool:
        """Whether a claim on a file would find a task. It indexes tasks that are not indexed yet."""
        if self.first(request, now):
            return True
        is_eligible, limits = eligibility(request), request.per_type_limits
        numbers = _any_list.decode(self._db.execute(SQL["due_unindexed_lanes"], (now,)).get)
        lanes = [self._lanes[number] for number in numbers if number in self._lanes or self._finds(number)]
        return request.limit > 0 and any(
            is_eligible(lane.queue, lane.type, lane.needs) and limits.get(lane.type, request.limit) > 0
            for lane in lanes
        )

    def _finds(self, number: int) -> bool:
        self._lanes.refresh()
        return number in self._lanes

    def first(self, request: ClaimRequest, now: float, own_changes: Iterable[int] = ()) -> list[int]:
        """The lanes that hold the first tasks of a claim. `own_changes`: lanes that this transaction has changed."""
        own = encode_list(sorted(own_changes))
        encoded, last, removals = self._db.execute(SQL["changed_heads"], (self.known, own)).get
        if removals != self._removals:  # removed lanes are not marked as changed
            self.forget()
            encoded, last, self._removals = self._db.execute(SQL["changed_heads"], (self.known, own)).get
        changed = _heads.decode(encoded)
        if any(number not in self._lanes for number, _ in changed):
            self._lanes.refresh()
        for number, head in changed:
            if head is None or number not in self._lanes:  # empty, removed, or with a damaged name
                self._heads.remove(number)
            else:
                queue, type_, needs, _ = self._lanes[number]
                self._heads.put(number, LaneIdentity(queue, type_, needs), LaneHead(*head))
        self.known = last
        return self._heads.first(request, now)


class TableTransaction:
    """The writer calls `begin` and `finish` inside each transaction, and `keep` or `forget` after it."""

    def __init__(self, db: apsw.Connection, known_version: int) -> None:
        self.db = db
        self.known_version = known_version  # of the schema
        self.last = 0  # the highest number in use
        self._last_before = 0  # the same when the transaction began
        self._last_lane_before = 0  # the highest number of a lane, then
        self._last_change_before = 0  # `last_change`, then
        self.is_staged = False
        self.last_change = 0  # the number of the last change to a lane's ready tasks, in `lanes`
        self._removals = 0  # the number of lane removals
        self._version: int | None = None  # the data version after the last commit; None: read everything again
        self._changed: set[int] = set()  # lanes whose ready tasks this transaction has changed
        self._extended: set[int] = set()  # lanes to which it has added tasks, possibly behind their first one
        self.own_changes: set[int] = set()  # both, since the last claim
        self.thinned: set[int] = set()  # lanes from which tasks were deleted
        self.lanes = SqliteLanes(db)
        self.ready = ReadyLanes(db, self.lanes)
        self.segments = SegmentTransaction(db)
        self._unindexed = UnindexedTasks(db)
        self.count_changes: Counter[tuple[int, str]] = Counter()  # what this transaction adds to the counts
        self.has_claimable = False  # this transaction added or scheduled tasks
        self.has_removed_lanes = False
        self.has_changed_all = False  # every lane may have another first task

    @property
    def is_outdated(self) -> bool:
        """Whether another connection may have written since the last commit. Ask in a new transaction."""
        return self._version is None or self.db.data_version() != self._version

    def begin(self) -> None:
        """Call in a new transaction. What is read stays valid until its end, since no other connection can write."""
        has_unindexed = self.is_outdated and self._catch_up()
        self._last_before, self._last_lane_before = self.last, self.lanes.last
        self._last_change_before = self.last_change
        self.is_staged = False
        self._changed.clear()
        self._extended.clear()
        self.thinned.clear()
        self.count_changes.clear()
        self.has_claimable = False
        self.has_removed_lanes = False
        self.has_changed_all = False
        if has_unindexed:
            self._index_tasks()

    def _catch_up(self) -> bool:
        """Read what other connections have changed. True: some tasks are not indexed yet."""
        self.last, last_lane, self.last_change, removals, has_segments = self.db.execute(SQL["last"]).get
        self.segments.may_exist = bool(has_segments)
        if removals != self._removals:
            self._removals = removals
            self.lanes.forget()
        self.lanes.catch_up(last_lane)
        return self._unindexed.exist()

    def _index_tasks(self) -> None:
        """Add the tasks that were added directly to the indexes and the counts."""
        lanes = self._unindexed.move(self.last)
        for lane, size in lanes.items():
            self.count_changes[lane, PENDING] += size
        self.last = self.db.execute("SELECT max(n) FROM tasks").get
        self.extend_lanes(lanes)

    def undo(self, count_changes: Counter[tuple[int, str]]) -> None:
        """Restore the counts from before the last call, which was rolled back."""
        self.forget()
        self.lanes.refresh()
        self.count_changes = count_changes
        self.is_staged = False

    def forget(self) -> None:
        """Clear everything cached in a transaction that was rolled back."""
        self._version = None
        self.lanes.forget()
        self.ready.forget()

    def abandon(self) -> None:
        """Clear what was read in a whole transaction. Lanes that it did not change need not be read again."""
        if self.thinned or self.has_changed_all:
            self.forget()
            return
        self._version = None
        self.own_changes |= self._changed | self._extended
        self.ready.forget_changes(self._last_change_before, self.lanes.forget_after(self._last_lane_before))

    def keep(self) -> None:
        """Call after the commit: the cached values stay valid until another connection writes."""
        self._version = None if self.thinned else self.db.data_version()

    def finish(self) -> None:
        """Call at the end of a transaction: writes the counts, and marks the lanes that others must read again."""
        write_rows(self.db, "count_up", [(lane, status, n) for (lane, status), n in self.count_changes.items() if n])
        if self.thinned:
            self._remove_empty_lanes(encode_list(sorted(self.thinned)))
        marked = 0
        if self._changed:
            self.db.execute(SQL["mark_changed"], (self.last_change + 1, encode_list(sorted(self._changed))))
            marked = self.db.changes()
        if behind := self._extended - self._changed:
            lanes = encode_list(sorted(behind))
            self.db.execute(SQL["mark_new_heads"], (self.last_change + 1, lanes, self._last_before))
            marked += self.db.changes()
        if marked:
            if self.ready.known == self.last_change:
                self.ready.known += 1
            self.last_change += 1

    def _remove_empty_lanes(self, lanes: str) -> None:
        self.db.execute(SQL["remove_counts"], (lanes,))
        self.db.execute(SQL["remove_lanes"], (lanes,))
        if self.db.changes():
            self.has_removed_lanes = True
            self.db.execute(SQL["count_lane_removal"])
            # A removed lane may have carried the number of the last change, and numbers are not reused.
            self.change_lanes([self.db.execute("SELECT max(n) FROM lanes").get])

    def change_lanes(self, lanes: Iterable[int]) -> None:
        """Record that the ready tasks of these lanes have changed."""
        self._changed.update(lanes)
        self.own_changes.update(lanes)

    def extend_lanes(self, lanes: Iterable[int]) -> None:
        """Record that tasks were added to these lanes."""
        self._extended.update(lanes)
        self.own_changes.update(lanes)

    def record(self, numbers: str, logs: Mapping[int, str] | None = None) -> None:
        """Add an event for each number, and for each number with a log.

        Raises DamageFound, without rows, if an event of that version exists.
        """
        try:
            if numbers != "[]":
                self.db.execute(SQL["record"], (numbers,))
            if logs:
                self.db.execute(SQL["record_with_log"], (msgspec.json.encode(logs).decode(),))
        except apsw.ConstraintError as error:
            raise DamageFound([]) from error
