"""Lanes: each (queue, type, needs, priority) that has tasks has a number, and tasks carry the number.

The priority belongs to a lane so that pending tasks are counted by priority. The monitor removes lanes without tasks.
No number is used twice.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from qo.engines.postgres.arrays import integers, texts
from qo.engines.postgres.pool import LaneGone, PostgresPool

LaneKey = tuple[str, str, tuple[str, ...], int]

_MAX_REMOVED = 1000  # lanes or groups removed by one statement
_MAX_CACHED = 100_000  # lanes that a process caches


class PostgresLane(NamedTuple):
    queue: str
    type: str
    needs: tuple[str, ...]
    priority: int


class LaneNumbers(NamedTuple):
    lane: int
    group: int  # lanes of the same queue and needs


class PostgresLanes:
    """A cache of lanes. Each lane is added in its own transaction, before its first task."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._lanes: dict[int, PostgresLane] = {}  # may include removed lanes: their numbers are not used again
        self._numbers: dict[LaneKey, LaneNumbers] = {}

    async def look_up(self, numbers: Iterable[int]) -> Mapping[int, PostgresLane]:
        """At least the lanes with these numbers."""
        needed = set(numbers)
        lanes = self._lanes  # `make` may replace the attribute during the read below
        if missing := needed - lanes.keys():
            rows = await self._pool.read("lanes", {"lane": integers(sorted(missing))})
            if len(lanes) > _MAX_CACHED:
                lanes = self._lanes = {n: lanes[n] for n in needed if n in lanes}
            lanes |= {n: _lane(row) for n, _, *row in rows}
        return lanes

    async def make(self, keys: Collection[LaneKey]) -> Mapping[LaneKey, LaneNumbers]:
        """At least the numbers of these lanes; a lane that does not exist is added.

        Raises LaneGone if one was removed again immediately. If a lane is removed later, adding a task to it raises
        LaneGone.
        """
        if len(self._numbers) > _MAX_CACHED:
            self._lanes, self._numbers = {}, {}
        for _ in range(2):  # the first statement does not see lanes that others add at the same time
            missing = sorted({key for key in keys if key not in self._numbers})
            if not missing:
                return self._numbers
            values = {
                "queue": texts([key[0] for key in missing]),
                "type": texts([key[1] for key in missing]),
                "needs": texts([_literal(key[2]) for key in missing]),
                "priority": integers([key[3] for key in missing]),
            }
            rows, _ = await self._pool.write("make_lanes", values)
            for n, group, *row in rows:
                self._lanes[n] = lane = _lane(row)
                self._numbers[lane] = LaneNumbers(n, group)
        if any(key not in self._numbers for key in keys):
            raise LaneGone(f"{self._pool.address.shown_url}: a new lane was removed immediately; try again")
        return self._numbers

    async def check(self, keys: Collection[LaneKey]) -> None:
        """Remove these lanes from the cache if one of them was removed."""
        known = {self._numbers[key].lane for key in keys if key in self._numbers}
        if known and len(await self._pool.read("lanes", {"lane": integers(sorted(known))})) < len(known):
            self.forget(keys)

    async def removed(self, numbers: Iterable[int]) -> set[int]:
        """Which of these lanes do not exist."""
        requested = set(numbers)
        rows = await self._pool.read("lanes", {"lane": integers(sorted(requested))}) if requested else []
        return requested - {n for n, *_ in rows}

    def forget(self, keys: Iterable[LaneKey]) -> None:
        """Read the numbers of these lanes again when they are needed."""
        for key in keys:
            self._numbers.pop(key, None)

    async def remove_empty(self) -> None:
        """Remove lanes without tasks, and groups without lanes; at most 1,000 of each."""
        for name in ("fold_empty", "drop_zeros", "remove_lanes", "remove_groups"):
            try:
                await self._pool.write(name, {"step": _MAX_REMOVED})
            except LaneGone:  # used again since the statement began; the next sweep tries again
                return


def _lane(row: list[Any]) -> PostgresLane:
    queue, type_, needs, priority = row
    return PostgresLane(queue, type_, tuple(needs), priority)


def _literal(needs: tuple[str, ...]) -> str:
    """The text form of a Postgres array."""
    quoted = (need.replace("\\", "\\\\").replace('"', '\\"') for need in needs)
    return "{" + ",".join(f'"{need}"' for need in quoted) + "}"
