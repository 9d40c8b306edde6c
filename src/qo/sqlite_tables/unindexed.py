"""Tasks that plain code has added directly to a file (engines/sqlite/direct_connection.py).

They are in a table of their own, `unindexed`, until the next writer moves them into `tasks`. So a submit writes one
page of the log, and not one for each index of `tasks`. Everything that reads tasks reads them too.
"""

from collections.abc import Sequence

import apsw
import msgspec

from qo.model import Task
from qo.sqlite_tables.lanes import SqliteLanes
from qo.sqlite_tables.rows import UNINDEXED_BY_N, read_tasks
from qo.sqlite_tables.statements import SQL

_OFFSET = 1 << 60  # above all numbers that an id gives
_lane_sizes = msgspec.json.Decoder(list[tuple[object, int]])


def number_of(task_id: str) -> int:
    """The number of a task in the table, which is negative: the time and 16 random bits of its id.

    An id always has the same number, so the primary key rejects a repeated submission. Numbers grow with time, so tasks
    are added to the last page. Two ids may have the same number; then the second task is added to `tasks`.
    """
    try:
        return int(task_id[1:8] + task_id[9:13] + task_id[15:18] + task_id[:1], 16) - _OFFSET
    except ValueError:  # not a UUID
        return -1


class UnindexedTasks:
    """The table on one connection. Only files have it; elsewhere there are no such tasks."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._exists = db.table_exists("main", "unindexed")

    def exist(self) -> bool:
        """Whether there are any."""
        return self._exists and bool(self._db.execute("SELECT EXISTS (SELECT 1 FROM unindexed)").get)

    def move(self, last: int) -> dict[int, int]:
        """Move them into `tasks`, where `last` is the highest number. Returns the number of tasks of each lane."""
        self._db.execute(SQL["move_unindexed"])
        self._db.execute("DELETE FROM unindexed")
        self._db.execute(SQL["record_moved"], (last,))
        sizes = _lane_sizes.decode(self._db.execute(SQL["moved_lanes"], (last,)).get)
        return {lane: size for lane, size in sizes if isinstance(lane, int)}  # others are set aside when they are read

    def get(self, ids: Sequence[str], lanes: SqliteLanes) -> list[Task]:
        """Those with these ids. Raises DamageFound."""
        if not ids or not self.exist():
            return []
        return [task for task in self.read([number_of(task_id) for task_id in ids], lanes) if task.id in ids]

    def read(self, numbers: Sequence[int], lanes: SqliteLanes) -> list[Task]:
        """Those with these numbers. Raises DamageFound."""
        return [*read_tasks(self._db, UNINDEXED_BY_N, numbers, lanes).values()] if numbers else []
