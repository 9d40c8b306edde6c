"""Rows that do not decode to tasks. The engine sets aside those that a call has found, and repeats the call.

`DamageFound` rolls back the call that raises it, so the row has not been changed.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import apsw

Answer = TypeVar("Answer")

DAMAGED = "damaged"  # the status of rows that were set aside


class BadRow(NamedTuple):
    n: int
    id: str
    problem: str


class DamageFound(Exception):
    """Some rows do not decode to tasks."""

    def __init__(self, rows: list[BadRow]) -> None:
        super().__init__(f"rows {[row.n for row in rows]} do not decode to tasks")
        self.rows = rows


async def around_damage(
    call: Callable[[], Awaitable[Answer]], set_aside: Callable[[list[BadRow]], Awaitable[object]]
) -> Answer:
    """Repeat the call until it finds no damaged rows. Each time some are set aside, so this ends."""
    while True:
        try:
            return await call()
        except DamageFound as found:
            await set_aside(found.rows)


def all_numbers(db: apsw.Connection) -> list[int]:
    """The numbers of all rows that are not set aside."""
    return [n for (n,) in db.execute("SELECT n FROM tasks WHERE status <> ?", (DAMAGED,))]
