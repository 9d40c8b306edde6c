"""Lanes: each (queue, type, needs, priority) that was ever seen has a number, and tasks carry the number.

Priority is among them so that what waits is counted by it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from qo.engines.postgres.arrays import integers, texts
from qo.engines.postgres.pool import PostgresPool

Key = tuple[str, str, tuple[str, ...], int]


class PostgresLane(NamedTuple):
    queue: str
    type: str
    needs: tuple[str, ...]
    priority: int


class PostgresLanes:
    """What this process knows of the lanes. They are only ever added, each in a transaction of its own."""

    def __init__(self, line: PostgresPool) -> None:
        self._line = line
        self._lanes: dict[int, PostgresLane] = {}
        self.numbers: dict[Key, int] = {}

    async def look_up(self, numbers: Iterable[int]) -> dict[int, PostgresLane]:
        """All lanes, these among them."""
        if not self._lanes.keys() >= set(numbers):
            await self._learn()
        return self._lanes

    async def make(self, keys: Iterable[Key]) -> dict[Key, int]:
        """The numbers of all lanes, these among them; a lane never seen gets one."""
        missing = sorted({key for key in keys if key not in self.numbers})
        if missing:
            await self._line.write(
                "make_lanes",
                {
                    "queue": texts([key[0] for key in missing]),
                    "type": texts([key[1] for key in missing]),
                    "needs": texts([_literal(key[2]) for key in missing]),
                    "priority": integers([key[3] for key in missing]),
                },
            )
            await self._learn()
        return self.numbers

    async def _learn(self) -> None:
        # All of them: one with a lower number may be committed after one with a higher.
        rows: list[tuple[Any, ...]] = await self._line.read("lanes", {})
        for n, queue, type_, needs, priority in rows:
            lane = PostgresLane(queue, type_, tuple(needs), priority)
            self._lanes[n] = lane
            self.numbers[lane] = n


def _literal(needs: tuple[str, ...]) -> str:
    """An array as Postgres writes it."""
    quoted = (need.replace("\\", "\\\\").replace('"', '\\"') for need in needs)
    return "{" + ",".join(f'"{need}"' for need in quoted) + "}"
