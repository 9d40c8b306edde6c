"""Cold segments of a shard: objects with tasks that are in no replica.

Two kinds of tasks are moved out of the tables: ready tasks deep in a lane, and tasks that finished long ago. A segment
is written first. Then one commit removes its tasks from the tables and adds the row of the segment. A commit that puts
the tasks back removes this row. Reads use the object itself, and change nothing.

Any process may move a segment at any time: the tables of the commit decide. The name of a segment contains the last
number of a record that may add it, so a segment that no table names can be deleted once the floor has passed this
number: no commit can add it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Protocol, TypeVar

import apsw

from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.cold_store import ColdStore, DamagedSegment
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.errors import ObjectTooLarge
from qo.model import Event, Filter, Position, Task
from qo.sqlite_tables.damage import DamageFound
from qo.sqlite_tables.patchsets import PatchsetRefused
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.segments import (
    ColdSegment,
    LoadedSegment,
    SegmentDraft,
    deep_tasks,
    divided,
    fixed,
    ids_of,
    old_tasks,
    open_segment,
)
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

log = logging.getLogger("qo.engines.replicated_log")
_MAX_BYTES = 4 * 1024 * 1024  # of the tasks of a segment
_MAX_LOADED_BYTES = 16 * 1024 * 1024  # of segments whose tasks return in one commit
_MAX_OPEN = 4  # segments whose tasks are kept in memory for reads
_MAX_MOVES = 32  # segments that one call of `freeze` writes
_MAX_CHOSEN = 8  # of them, whose tasks are chosen at once: a choice reads over all tasks that stay before them
_COLLECT_SHARE = 24  # collect after one part in 24 of the minimal age of deleted records
_PASS_TIME = 60.0  # seconds for which claims ignore a segment that cannot be read
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


class ColdSegments:
    def __init__(
        self, store: ColdStore, checkpoints: CheckpointStore, options: LogOptions, live: ReplicaAccess, run: Runner
    ) -> None:
        self._store, self._checkpoints, self._options = store, checkpoints, options
        self._live, self._run = live, run
        self._open: OrderedDict[str, SqliteReader] = OrderedDict()  # by the name of the object, the last used one last
        self._is_freezing, self._thawed_at = False, float("-inf")
        self._passed_at: float | None = None  # when claims began to ignore a segment
        self._collected_at = self._froze_history_at = float("-inf")
        self._max_bytes, self._max_loaded_bytes = _MAX_BYTES, _MAX_LOADED_BYTES  # reduced if the store refuses them

    # --- moving

    async def freeze(self, now: float, *, with_history: bool) -> int:
        """Move tasks that no process needs soon into segments. Returns the number of segments."""
        is_needed = asyncio.get_running_loop().time() - self._thawed_at < self._options.thaw_time
        if self._is_freezing or is_needed:
            return 0
        self._is_freezing = True
        try:
            return await self._freeze_deep() + (await self._freeze_history(now) if with_history else 0)
        finally:
            self._is_freezing = False

    async def _freeze_deep(self) -> int:
        """Move ready tasks deep in their lanes."""
        moved = 0
        while moved < _MAX_MOVES and (chosen := await self._live.peek(lambda replica: replica.choose(self._deep))):
            for numbers in chosen:
                if not await self._freeze_one(numbers):
                    return moved
                moved += 1
        return moved

    async def _freeze_history(self, now: float) -> int:
        """Move old finished tasks.

        After all were moved, pause, because retention puts them back one segment at a time.
        """
        if 0 <= now - self._froze_history_at < self._options.cold_age:
            return 0
        chosen = await self._live.peek(lambda replica: replica.choose(partial(self._old, now=now)))
        moved = 0
        for numbers in chosen:
            moved += await self._freeze_one(numbers)
        if len(chosen) < _MAX_MOVES:
            self._froze_history_at = now
        return moved

    async def _freeze_one(self, numbers: Sequence[int]) -> bool:
        def draft(replica: Replica) -> tuple[SegmentDraft | None, int]:
            return replica.draft_segment(fixed(numbers)), replica.schema_since

        drafted, since = await self._live.peek(draft)  # the commit compares the tasks
        if drafted is None:
            return False
        limit = self._live.last_record + self._options.segment_span
        try:
            name, size = await self._store.write(drafted, limit, since)
        except ObjectTooLarge as error:
            self._max_bytes = max(1, min(self._max_bytes, len(drafted.body)) // 2)
            log.warning("the next segments have at most %d bytes: %s", self._max_bytes, error)
            return False
        is_moved = await self._live.ask(lambda table: self._live.last_record < limit and table.freeze(drafted, name))
        if is_moved:
            self._live.shrank(size)
        return is_moved

    def _deep(self, db: apsw.Connection) -> list[list[int]]:
        hot, kept, size = self._options.hot_tasks, self._options.kept_tasks, self._options.segment_size
        return deep_tasks(db, hot=hot, kept=kept, size=size, max_bytes=self._max_bytes, segments=_MAX_CHOSEN)

    def _old(self, db: apsw.Connection, now: float) -> list[list[int]]:
        before, size = now - self._options.cold_age, self._options.segment_size
        return old_tasks(db, before=before, size=size, max_bytes=self._max_bytes, segments=_MAX_MOVES)

    async def load(
        self, numbers: Collection[int], *, held: Sequence[LoadedSegment] = (), is_claiming: bool = False
    ) -> list[LoadedSegment]:
        """Read the objects of the segments that the tables still name, and add them to those that the caller holds.

        If they are too large together, the tasks of some return to the tables immediately. Raises DamagedSegment.
        """
        if not is_claiming:  # the first tasks of a lane, which claims need, are not moved again
            self._thawed_at = asyncio.get_running_loop().time()
        loaded, size = [*held], sum(len(found.body) for found in held)
        for segment in await self._live.read(lambda replica: replica.read(lambda reader: reader.segments())):
            if segment.n in numbers and (found := await self._load(segment)):
                loaded.append(found)
                size += len(found.body)
            if size > self._max_loaded_bytes:
                await self._thaw(loaded)
                loaded, size = [], 0
        return loaded

    async def _load(self, segment: ColdSegment) -> LoadedSegment | None:
        """None: the tasks have returned to the tables, and the object was deleted."""
        try:
            body = await self._store.read(segment)
            return LoadedSegment(segment, body, await self._run(lambda: ids_of(body)))
        except apsw.Error as error:
            raise self._unusable(segment, error) from error
        except DamagedSegment:
            if await self._is_listed(segment):
                raise
            return None

    async def thaw(self, numbers: Collection[int], *, is_claiming: bool = False) -> None:
        """Put the tasks of these segments back into the tables. Raises DamagedSegment, or ObjectTooLarge."""
        await self._thaw(await self.load(numbers, is_claiming=is_claiming))

    async def thaw_apart(self, loaded: Sequence[LoadedSegment], *, is_too_large: bool) -> None:
        """Put the tasks back in a commit for each segment, because one for all has failed. Raises as `thaw`."""
        if is_too_large:
            self._max_loaded_bytes = min(self._max_loaded_bytes, sum(len(found.body) for found in loaded) // 2)
        await self._thaw(loaded)

    async def _thaw(self, loaded: Sequence[LoadedSegment]) -> None:
        for found in loaded:
            try:
                await self._live.ask(partial(SqliteTable.thaw, loaded=found), size=len(found.body))
            except PatchsetRefused as error:
                raise self._unusable(found.segment, error) from error
            except ObjectTooLarge:
                self._max_bytes = max(1, min(self._max_bytes, len(found.body) // 2))
                if not await self._divide(found):
                    raise

    async def _divide(self, found: LoadedSegment) -> bool:
        """Replace a segment by two, whose tasks need smaller records. False if it cannot be divided."""
        is_known, since = await self._live.peek(lambda replica: (replica.knows_all_columns, replica.schema_since))
        halves = await self._run(lambda: divided(found.body)) if is_known else []
        if not halves:
            return False
        limit = self._live.last_record + self._options.segment_span
        parts = [(half, (await self._store.write(half, limit, since))[0]) for half in halves]
        await self._live.ask(lambda table: self._live.last_record < limit and table.divide(found, parts))
        return True

    async def pass_over(self, numbers: Collection[int], problem: object) -> None:
        """Let claims ignore segments that cannot be read, for a minute or until the next repair."""
        log.error("%s", problem)
        self._passed_at = asyncio.get_running_loop().time()
        await self._live.read(lambda replica: _pass_over(replica, numbers))

    async def _is_listed(self, segment: ColdSegment) -> bool:
        """Whether the tables still name a segment, whose object may have been deleted after its tasks were moved."""
        self._live.distrust()
        rows = await self._live.read(lambda replica: replica.read(lambda reader: reader.segments()))
        return any(row.object == segment.object for row in rows)

    def _unusable(self, segment: ColdSegment, error: object) -> DamagedSegment:
        return DamagedSegment(
            f"{self._store.key(segment.object)} does not match the tables ({error}); see `qo doctor`, and restore an"
            " older version of the bucket"
        )

    # --- reading

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
                    if not await self._is_listed(segment):
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
                raise self._unusable(segment, error) from error
        self._open[segment.object] = reader
        self._open.move_to_end(segment.object)
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        try:
            return await self._run(lambda: work(reader))
        except DamageFound as error:
            raise self._unusable(segment, error) from error

    # --- garbage

    async def collect(self) -> int:
        """Delete the objects that no table names and no commit can add. Returns their number.

        A listing is expensive and the floor moves rarely, so this runs only occasionally.
        """
        now = asyncio.get_running_loop().time()
        if now - self._collected_at < self._options.min_record_age / _COLLECT_SHARE:
            return 0
        self._collected_at = now
        names = await self._store.names()
        if not names:
            return 0
        # The floor first: every record below it is in the tables that are read after it.
        floor = (await self._checkpoints.read()).floor
        position, rows = await self._live.read(_position_and_segments)
        if position < floor - 1:  # the machine was suspended together with its clocks, so the tables are outdated
            self._collected_at = float("-inf")
            return 0
        used = {row.object for row in rows}
        garbage = [name for name in names if name not in used and int(name.partition("-")[0], 16) < floor]
        await self._store.delete(garbage)
        return len(garbage)

    async def try_again_late(self) -> None:
        """As `try_again`, if claims have ignored segments for a while. Most processes never repair."""
        if self._passed_at is not None and asyncio.get_running_loop().time() - self._passed_at >= _PASS_TIME:
            await self.try_again()

    async def try_again(self) -> None:
        """Let claims use segments again that could not be read."""
        self._passed_at = None
        await self._live.peek(lambda replica: _set_unreadable(replica, frozenset()))


def _pass_over(replica: Replica, numbers: Collection[int]) -> None:
    rows = replica.read(lambda reader: reader.segments())
    _set_unreadable(replica, replica.unreadable | {row.object for row in rows if row.n in numbers})


def _set_unreadable(replica: Replica, objects: frozenset[str]) -> None:
    replica.unreadable = objects


def _position_and_segments(replica: Replica) -> tuple[int, list[ColdSegment]]:
    """A position, and the segments at this or a later one."""
    return replica.position.seq, replica.read(lambda reader: reader.segments())
