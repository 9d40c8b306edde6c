"""Which lanes hold the first tasks, as known to one connection."""

from collections.abc import Iterable
from typing import Any

import apsw
import msgspec

from qo.model import ClaimRequest, LaneHead, LaneHeads, LaneIdentity, eligibility
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.rows import encode_list
from qo.sqlite_tables.statements import SQL

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
        """Whether a claim would find a task. It indexes tasks that are not indexed yet."""
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
