"""Cold segments of a shard: objects with tasks that are in no replica.

Two kinds of tasks are moved out of the tables: ready tasks deep in a lane, and tasks that finished long ago. A segment
is written first. Then one commit removes its tasks from the tables and adds the row of the segment. A commit that puts
the tasks back removes this row. Reads (`cold_reads.py`) use the object itself, and change nothing.

Any process may move a segment at any time: the tables of the commit decide. The name of a segment contains the last
number of a record that may add it, so a segment that no table names can be deleted once the floor has passed this
number: no commit can add it.
"""

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import apsw

from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.cold_reads import ReplicaAccess, is_listed
from qo.engines.replicated_log.cold_store import ColdStore, DamagedSegment
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.errors import ObjectTooLarge
from qo.sqlite_tables.patchsets import PatchsetRefused
from qo.sqlite_tables.segment_drafts import deep_tasks, divided, fixed, old_tasks
from qo.sqlite_tables.segments import ColdSegment, LoadedSegment, SegmentDraft, ids_of
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")

log = logging.getLogger("qo.engines.replicated_log")
_MAX_BYTES = 4 * 1024 * 1024  # of the tasks of a segment
_MAX_LOADED_BYTES = 16 * 1024 * 1024  # of segments whose tasks return in one commit
_MAX_MOVES = 32  # segments that one call of `freeze` writes
_MAX_CHOSEN = 8  # of them, whose tasks are chosen at once: a choice reads over all tasks that stay before them
_COLLECT_SHARE = 24  # collect after one part in 24 of the minimal age of deleted records
_PASS_TIME = 60.0  # seconds for which claims ignore a segment that cannot be read


class ColdSegments:
    def __init__(
        self, store: ColdStore, checkpoints: CheckpointStore, options: LogOptions, live: ReplicaAccess, run: Runner
    ) -> None:
        self._store, self._checkpoints, self._options = store, checkpoints, options
        self._live, self._run = live, run
        self._is_freezing, self._thawed_at = False, float("-inf")
        self._held_back = 0  # reads that need what they have put back
        self._passed_at: float | None = None  # when claims began to ignore a segment
        self._collected_at = self._froze_history_at = float("-inf")
        self._max_bytes, self._max_loaded_bytes = _MAX_BYTES, _MAX_LOADED_BYTES  # reduced if the store refuses them

    # --- moving

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """This process moves no ready tasks into segments meanwhile: they may be those that were just put back."""
        self._held_back += 1
        try:
            yield
        finally:
            self._held_back -= 1

    async def freeze(self, now: float, *, with_history: bool) -> int:
        """Move tasks that no process needs soon into segments. Returns the number of segments."""
        is_needed = asyncio.get_running_loop().time() - self._thawed_at < self._options.thaw_time
        if self._is_freezing or is_needed or self._held_back:
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
                if self._held_back or not await self._freeze_one(numbers):
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
            raise self._store.mismatch(segment, error) from error
        except DamagedSegment:
            if await is_listed(self._live, segment):
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
                raise self._store.mismatch(found.segment, error) from error
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
