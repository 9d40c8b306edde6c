"""Reads of tasks in cold segments. They use the objects, and change nothing."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from qo.engines.replicated_log.cold_store import ColdStore, DamagedSegment
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.model import Event, Filter, Position, Task
from qo.sqlite_tables.patchsets import PatchsetRefused
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import DamageFound
from qo.sqlite_tables.segment_drafts import open_segment
from qo.sqlite_tables.segments import ColdSegment
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

log = logging.getLogger("qo.engines.replicated_log")
_MAX_OPEN = 4  # segments whose tasks are kept in memory
_MAX_READS = 3  # of the tables, if a segment disappears: its tasks were moved back, and its object was deleted


class ReplicaAccess(Protocol):
    """The interface of the replica for segments."""

    async def peek(self, work: Callable[[Replica], Answer]) -> Answer:
        """Run work on the replica as it is."""

    async def read(self, work: Callable[[Replica], Answer]) -> Answer:
        """Run work on a replica that has every record."""

    async def ask(self, work: Callable[[SqliteTable], Answer], *, size: int = 0) -> Answer:
        """Run work in a commit. `size`: bytes that it adds to the record."""

    @property
    def last_record(self) -> int:
        """The number of the last record, in the work of a commit too."""

    def distrust(self) -> None:
        """Called when an object is missing: the machine may have been suspended together with its clocks."""

    def shrank(self, size: int) -> None:
        """Called when tasks of this many stored bytes have left the tables."""


async def is_listed(live: ReplicaAccess, segment: ColdSegment) -> bool:
    """Whether the tables still name a segment, whose object may have been deleted after its tasks were moved."""
    live.distrust()
    rows = await live.read(lambda replica: replica.read(lambda reader: reader.segments()))
    return any(row.object == segment.object for row in rows)


class ColdReads:
    def __init__(self, store: ColdStore, live: ReplicaAccess, run: Runner) -> None:
        self._store, self._live, self._run = store, live, run
        self._open: OrderedDict[str, SqliteReader] = OrderedDict()  # by the name of the object, the last used one last

    async def find(
        self, where: Filter, limit: int, start: Position | None, now: float, *, is_current: bool = False
    ) -> list[Task]:
        """A page of the tasks in the tables and in segments, newest first. Omits segments that cannot be read.

        `is_current`, here and below: the replica need not be brought up to date first.
        """
        if limit < 1:
            return []

        def work(reader: SqliteReader) -> tuple[list[Task], list[ColdSegment]]:
            return reader.find_and_segments(where, limit, start, now)

        async def complete(found: list[Task], segments: list[ColdSegment]) -> list[Task]:
            for segment in sorted(segments, key=lambda segment: segment.newest, reverse=True):
                if len(found) >= limit and found[-1].created_at > segment.newest:
                    break
                try:
                    more = await self._query(segment, lambda reader: reader.find(where, limit, start, now))
                except DamagedSegment as error:
                    if not await is_listed(self._live, segment):
                        raise
                    log.warning("its tasks are not shown: %s", error)
                    continue
                found = sorted([*found, *more], key=lambda task: (task.created_at, task.id), reverse=True)[:limit]
            return found

        return await self._consistent(work, complete, is_current=is_current)

    async def get(self, ids: Sequence[str], *, is_current: bool = False) -> list[Task | None]:
        """The tasks with these ids, in the tables or in segments. Raises DamagedSegment."""

        async def complete(found: list[Task | None], segments: list[ColdSegment]) -> list[Task | None]:
            cold: dict[str, Task] = {}
            for segment in segments:
                tasks = await self._query(segment, lambda reader: reader.get(ids))
                cold |= {task.id: task for task in tasks if task is not None}
            return [task or cold.get(task_id) for task_id, task in zip(ids, found, strict=True)]

        return await self._consistent(lambda reader: reader.get_and_segments(ids), complete, is_current=is_current)

    async def history(self, task_id: str, *, is_current: bool = False) -> list[Event]:
        """The events of a task, in the tables or in segments. Raises DamagedSegment."""

        async def complete(found: list[Event], segments: list[ColdSegment]) -> list[Event]:
            for segment in segments:
                found = found or await self._query(segment, lambda reader: reader.history(task_id))
            return found

        return await self._consistent(
            lambda reader: reader.history_and_segments(task_id), complete, is_current=is_current
        )

    async def _consistent(
        self,
        work: Callable[[SqliteReader], tuple[Answer, list[ColdSegment]]],
        complete: Callable[[Answer, list[ColdSegment]], Awaitable[Answer]],
        *,
        is_current: bool,
    ) -> Answer:
        """Read the tables, and complete the answer from the segments that they named at that moment."""
        for reads_left in reversed(range(_MAX_READS)):
            read = self._live.peek if is_current else self._live.read
            found, segments = await read(lambda replica: replica.read(work))
            is_current = False
            if not segments:
                return found
            try:
                return await complete(found, segments)
            except DamagedSegment:
                if not reads_left:
                    raise
                self._live.distrust()
        raise RuntimeError("unreachable")

    async def _query(self, segment: ColdSegment, work: Callable[[SqliteReader], Answer]) -> Answer:
        """Run work that reads the tasks of a segment. Raises DamagedSegment."""
        reader = self._open.get(segment.object)
        if reader is None:
            body = await self._store.read(segment)
            try:
                reader = await self._run(lambda: SqliteReader(open_segment(body)))
            except PatchsetRefused as error:
                raise self._store.mismatch(segment, error) from error
        self._open[segment.object] = reader
        self._open.move_to_end(segment.object)
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        try:
            return await self._run(lambda: work(reader))
        except DamageFound as error:
            raise self._store.mismatch(segment, error) from error
