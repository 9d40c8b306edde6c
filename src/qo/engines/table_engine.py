"""The engine port over a table: process memory, a SQLite file, and a bucket in the layouts `one` and `sqlite`.

A table knows neither a clock nor a store. The subclass runs work on it: in the process, on the thread of a connection,
or on the content of an object that is then written.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from qo.clock import Clock
from qo.engine import Engine
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Position,
    Status,
    Task,
    check_distinct,
    page_start,
)

Answer = TypeVar("Answer")


class WritableTable(Protocol):
    """The part of a table that changes it. `qo.model.Table` specifies each method."""

    def add(self, tasks: Sequence[NewTask], now: float) -> list[Added]: ...
    def claim(self, request: ClaimRequest, now: float) -> list[Task]: ...
    def apply(self, changes: Sequence[Change], now: float) -> list[bool]: ...
    def delete(self, ids: Sequence[str]) -> list[bool]: ...
    def write_note(self, name: str, data: bytes, expected: str) -> str: ...
    def drop_note(self, name: str) -> None: ...


class ReadableTable(Protocol):
    """The part of a table that reads it."""

    def get(self, ids: Sequence[str]) -> list[Task | None]: ...
    def find(self, where: Filter, limit: int, start: Position | None, now: float) -> list[Task]: ...
    def count(self, batch: str | None = None) -> Counts: ...
    def history(self, task_id: str) -> list[Event]: ...
    def read_note(self, name: str) -> Note | None: ...
    def notes(self, prefix: str) -> list[Note]: ...


class TableEngine(Engine):
    """Subclasses provide the three methods below, `open`, `close` and `wait`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @abstractmethod
    async def _write(
        self, work: Callable[[WritableTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        """Run work on the table, and return its answer when the changes are durable.

        If the caller is cancelled after the work was done, `abandoned` is called with the answer.
        """

    @abstractmethod
    async def _read(self, work: Callable[[ReadableTable], Answer]) -> Answer:
        """Run work that changes nothing on the table."""

    def _wake(self) -> None:
        """Called after this process wrote tasks that may be claimable."""

    async def now(self) -> float:
        return self._clock()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        added = await self._write(lambda table: table.add(tasks, self._clock()))
        self._wake()
        return added

    async def claim(self, request: ClaimRequest) -> list[Task]:
        return await self._write(lambda table: table.claim(request, self._clock()))

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        applied = await self._write(lambda table: table.apply(changes, self._clock()))
        if any(change.to is Status.PENDING for change in changes):
            self._wake()
        return applied

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._write(lambda table: table.delete(ids))

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self._write(lambda table: table.write_note(name, data, expected))

    async def drop_note(self, name: str) -> None:
        await self._write(lambda table: table.drop_note(name))

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self._read(lambda table: table.get(ids))

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        return await self._read(lambda table: table.find(where, limit, start, self._clock()))

    async def count(self, batch: str | None = None) -> Counts:
        return await self._read(lambda table: table.count(batch))

    async def history(self, task_id: str) -> list[Event]:
        return await self._read(lambda table: table.history(task_id))

    async def read_note(self, name: str) -> Note | None:
        return await self._read(lambda table: table.read_note(name))

    async def notes(self, prefix: str) -> list[Note]:
        return await self._read(lambda table: table.notes(prefix))
