"""Rows that are no tasks. The engine sets aside those that a call has met, and makes the call again.

`DamageFound` undoes the one call of a transaction that raises it, so nothing of the row has been written over.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import apsw

Answer = TypeVar("Answer")

DAMAGED = "damaged"  # the status of a row that was set aside


class BadRow(NamedTuple):
    n: int
    id: str
    problem: str


class DamageFound(Exception):
    """Some rows are no tasks."""

    def __init__(self, rows: list[BadRow]) -> None:
        super().__init__(f"rows {[row.n for row in rows]} are no tasks")
        self.rows = rows


async def around_damage(
    ask: Callable[[], Awaitable[Answer]], set_aside: Callable[[list[BadRow]], Awaitable[object]]
) -> Answer:
    """Ask until nothing damaged is met any more: each time there is less of it."""
    while True:
        try:
            return await ask()
        except DamageFound as found:
            await set_aside(found.rows)


def all_numbers(db: apsw.Connection) -> list[int]:
    """Of every row that was not set aside yet."""
    return [n for (n,) in db.execute("SELECT n FROM tasks WHERE status <> ?", (DAMAGED,))]
