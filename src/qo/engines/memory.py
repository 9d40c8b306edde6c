"""An engine in process memory: the executable specification, and the engine for tests."""

import asyncio
from collections.abc import Iterable, Sequence

from qo.clock import Clock, system_clock
from qo.damage import encode_damage, note_name
from qo.engine import Engine
from qo.engines.ready_tasks import ReadyTasks
from qo.findings import Finding
from qo.model import (
    ANY,
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Table,
    Task,
    check_distinct,
)
from qo.url_secrets import hide_password


class _IndexedTable(Table):
    """The specification's table with an index of ready tasks, so that a claim does not examine every task."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = ReadyTasks(self.tasks.get)

    def _due(self, request: ClaimRequest, now: float) -> Iterable[Task]:
        return self.ready.take(request, now)

    def _write(self, task: Task, *, quietly: bool = False) -> None:
        super()._write(task, quietly=quietly)
        self.ready.join(task)


class MemoryEngine(Engine):
    def __init__(self, clock: Clock = system_clock) -> None:
        self._table = _IndexedTable()
        self._clock = clock
        self._changed = asyncio.Event()
        self._damaged: set[str] = set()

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        readable = [task for task in tasks if task.id not in self._damaged]
        added = dict(zip((task.id for task in readable), self._table.add(readable, self._clock()), strict=True))
        self._changed.set()
        return [added.get(task.id, Added(task.id, new=False)) for task in tasks]

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return self._table.claim(request, self._clock())

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        applied = self._table.apply(changes, self._clock())
        self._changed.set()
        return applied

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        answers = self._table.delete(ids)
        return [deleted or self._discard(task_id) for task_id, deleted in zip(ids, answers, strict=True)]

    def _discard(self, task_id: str) -> bool:
        if task_id not in self._damaged:
            return False
        self._damaged.remove(task_id)
        self._table.drop_note(note_name(task_id))
        return True

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return self._table.get(ids)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        return self._table.find(where, limit=limit, after=after, created_before=created_before, now=self._clock())

    async def count(self) -> Counts:
        return self._table.count()

    async def history(self, task_id: str) -> list[Event]:
        return self._table.history(task_id)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        self._changed.clear()
        now = self._clock()
        if self._table.ready.has(request, now):
            return
        coming = self._table.ready.next_at()
        try:
            await asyncio.wait_for(self._changed.wait(), timeout if coming is None else min(timeout, coming - now))
        except TimeoutError:
            return

    def damage(self, task_id: str) -> None:
        """For tests: make a task behave as if its stored form could not be read."""
        self._table.tasks.pop(task_id)
        self._damaged.add(task_id)
        self._table.write_note(note_name(task_id), encode_damage(task_id, "a test asked for it"), ANY)

    async def now(self) -> float:
        return self._clock()

    async def read_note(self, name: str) -> Note | None:
        return self._table.read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return self._table.write_note(name, data, expected)

    async def notes(self, prefix: str) -> list[Note]:
        return self._table.notes(prefix)

    async def drop_note(self, name: str) -> None:
        self._table.drop_note(name)


def from_url(url: str, *, clock: Clock = system_clock) -> Engine:  # noqa: ARG001 - every call opens a new store
    return MemoryEngine(clock)


async def examine(url: str) -> list[Finding]:
    return [
        Finding(
            "memory",
            None,
            f"{hide_password(url)} stores tasks in one process and loses them when it ends; use it only for tests",
        )
    ]
