"""How many due tasks of each group wait.

The counts of a store know no groups, so the tasks are read: all of them, or the newest `MAX_READ` of a longer queue.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct

from qo.clock import boot_clock
from qo.engine import Engine
from qo.model import Filter, PendingKind, Status

MAX_READ = 1000  # tasks
_AGE_FACTOR, _MAX_AGE = 20.0, 60.0  # a read is reused for this many times its duration, at most a minute


class WaitingGroups(Struct, frozen=True):
    numbers: Mapping[tuple[str, str], int] = {}  # by type and group
    is_complete: bool = True  # False: there are more tasks, and all numbers are lower bounds
    ungrouped: frozenset[str] = frozenset()  # types with tasks whose group is not stored; a refused start stores it


class WaitingGroupsReader:
    """Concurrent callers share one read."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._types: frozenset[str] | None = None
        self._known = WaitingGroups()
        self._known_until = float("-inf")

    async def read(self, types: Collection[str] = ()) -> WaitingGroups:
        """Of these types, or of all. Raises StorageError."""
        wanted = frozenset(types)
        async with self._lock:
            began = boot_clock()
            if wanted != self._types or began >= self._known_until:
                self._known, self._types = await self._count(wanted), wanted
                now = boot_clock()
                self._known_until = now + min(_MAX_AGE, _AGE_FACTOR * (now - began))
            return self._known

    async def _count(self, types: Collection[str]) -> WaitingGroups:
        due = Filter(types=tuple(sorted(types)), statuses=(Status.PENDING,), pending=(PendingKind.READY,))
        tasks = await self._engine.find_without_values(due, limit=MAX_READ)
        numbers = Counter((task.type, task.group) for task in tasks if task.group is not None)
        ungrouped = frozenset(task.type for task in tasks if task.group is None)
        return WaitingGroups(dict(numbers), len(tasks) < MAX_READ, ungrouped)
