"""Calls on one shard of a log whose tasks may be in cold segments.

A call that needs a task of a segment is repeated after the tasks of the segment have returned to the tables.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TypeVar

from qo.engines.replicated_log.catch_up import CatchUp
from qo.engines.replicated_log.cold_segments import ColdSegments
from qo.engines.replicated_log.cold_store import DamagedSegment
from qo.engines.replicated_log.commits import LogCommits
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.replica import Replica
from qo.errors import ObjectTooLarge, StorageError
from qo.model import ClaimRequest
from qo.sqlite_tables.patchsets import PatchsetRefused
from qo.sqlite_tables.rows import BadRow, around_damage
from qo.sqlite_tables.segments import LoadedSegment, SegmentNeeded
from qo.sqlite_tables.table import SqliteTable

Answer = TypeVar("Answer")


class ShardCalls:
    """`set_aside` removes damaged rows from the tables."""

    def __init__(
        self,
        commits: LogCommits,
        cold: ColdSegments,
        set_aside: Callable[[list[BadRow]], Awaitable[object]],
    ) -> None:
        self._commits, self._cold, self._set_aside = commits, cold, set_aside

    async def ask(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        *,
        request: ClaimRequest | None = None,
        may_combine: bool = False,
        size: int = 0,
    ) -> Answer:
        """Commit the work. It is repeated while it finds damaged rows, or needs tasks of segments.

        `request`: the one of a claim. `may_combine`: the work claims for it, and does nothing else.

        The tasks of a few segments return in the same commit, so that no other process can move them again before.
        """
        loaded: list[LoadedSegment] = []

        def complete(table: SqliteTable) -> Answer:
            for segment in loaded:
                table.thaw(segment)
            return work(table)

        async def attempt() -> Answer:
            is_simple = may_combine and not loaded  # similar claims are combined, and only run their requests
            whole = size + sum(len(segment.body) for segment in loaded)
            return await self._commits.ask(complete, abandoned, request if is_simple else None, size=whole)

        while True:
            try:
                return await around_damage(attempt, self._set_aside)
            except SegmentNeeded as needed:
                loaded = await self._load(needed.numbers, loaded, is_claiming=request is not None)
            except (ObjectTooLarge, PatchsetRefused) as error:
                if not loaded:
                    raise
                await self._thaw_apart(loaded, error, is_claiming=request is not None)
                loaded = []

    async def _load(
        self, numbers: Sequence[int], held: list[LoadedSegment], *, is_claiming: bool
    ) -> list[LoadedSegment]:
        """Read segments, besides those that the call holds. Raises DamagedSegment; claims pass over such a segment."""
        try:
            return await self._cold.load(numbers, held=held, is_claiming=is_claiming)
        except (DamagedSegment, ObjectTooLarge):
            if not is_claiming:
                raise
        await self._thaw(numbers)
        return held

    async def _thaw_apart(self, loaded: Sequence[LoadedSegment], error: StorageError, *, is_claiming: bool) -> None:
        """Put segments back that cannot return in one commit. Raises DamagedSegment; claims pass over such ones."""
        try:
            await self._cold.thaw_apart(loaded, is_too_large=isinstance(error, ObjectTooLarge))
        except (DamagedSegment, ObjectTooLarge):
            if not is_claiming:
                raise
            await self._thaw([found.segment.n for found in loaded])

    async def read_candidates(self, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a read of what a claim may lease until it needs no task of a segment."""
        with ExitStack() as stack:
            while True:
                try:
                    return await around_damage(read, self._set_aside)
                except SegmentNeeded as needed:
                    # Without this, a repair could put them into segments again before the next read, without end.
                    stack.enter_context(self._cold.held_back())
                    await self._thaw(needed.numbers)

    async def _thaw(self, numbers: Sequence[int]) -> None:
        """Put the tasks of segments back into the tables, or let claims pass over them."""
        for number in numbers:
            try:
                await self._cold.thaw([number], is_claiming=True)
            except (DamagedSegment, ObjectTooLarge) as error:
                await self._cold.pass_over([number], error)


class ShardReplica:
    """The interface of the replica for cold segments."""

    def __init__(
        self,
        live: LiveReplica,
        catch_up: CatchUp,
        commits: LogCommits,
        shrank: Callable[[int], None],
        distrust: Callable[[], None],
    ) -> None:
        self._live, self._catch_up, self._commits = live, catch_up, commits
        self.shrank, self.distrust = shrank, distrust

    async def peek(self, work: Callable[[Replica], Answer]) -> Answer:
        return await (self._live.read(work) if self._live.is_open else self.read(work))

    async def read(self, work: Callable[[Replica], Answer]) -> Answer:
        await self._catch_up.run()
        while not self._live.is_open:  # a commit has found that the replica is stale
            await self._catch_up.run()
        return await self._live.read(work)

    async def ask(self, work: Callable[[SqliteTable], Answer], *, size: int = 0) -> Answer:
        return await self._commits.ask(work, size=size)

    @property
    def last_record(self) -> int:
        return self._live.position.seq
