"""The engine port for the layout `log`: finds or creates the log, and keeps notes as objects next to it."""

import os
from collections.abc import Callable, Sequence
from functools import partial

from qo.bucket import Bucket
from qo.clock import Clock, boot_clock, system_clock
from qo.damage import QUARANTINE, Quarantine
from qo.engine import Engine, Snapshot
from qo.engines.note_objects import NoteObjects
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.replicated_log.inbox_choice import InboxChoice
from qo.engines.replicated_log.log_meta import LogMeta, create_log, read_meta
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.log_shard import LogShard
from qo.engines.replicated_log.record_batches import write_in_batches
from qo.engines.replicated_log.record_store import WatchedBucket
from qo.engines.replicated_log.runner import Runner, SharedRunners, run_inline
from qo.engines.replicated_log.shard_access import ShardAccess, new_poller
from qo.engines.replicated_log.shard_owners import ShardOwners
from qo.engines.replicated_log.sharded_log import ShardedLog
from qo.engines.replicated_log.shared_runs import SharedRuns
from qo.engines.replicated_log.tail_proof import ProofStart
from qo.errors import InvalidSetting, StorageError
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Task,
    check_distinct,
    page_start,
    stamps,
)

FORMAT_CHECK_INTERVAL = 10.0  # seconds, before a note is written
# Transactions write these notes, so they are rows of the tables. All others are objects: a process without a replica
# reads and writes them.
_ROW_NOTES = (f"{QUARANTINE}tasks/", f"{QUARANTINE}submissions/")


class ReplicatedLogEngine(Engine):
    """Uses the bucket's clock unless a clock is given. A log that does not exist is empty; `add` creates it."""

    default_retention = 86_400.0  # seconds: every replica holds the finished tasks too

    def __init__(
        self,
        bucket: Bucket,
        options: LogOptions | None = None,
        *,
        clock: Clock | None = None,
        new_runner: Callable[[], Runner] = lambda: run_inline,
        elapsed: Clock = boot_clock,
        wall: Clock = system_clock,
    ) -> None:
        """`new_runner` creates the runners of the replicas.

        `elapsed` and `wall` are clocks that detect that the process was suspended.
        """
        bucket = WatchedBucket(bucket, self._distrust)
        self._bucket, self._options = bucket, options or LogOptions()
        self._clock = clock or bucket.now
        self._process = os.getpid()
        self._failures = 0  # requests
        self._new_runner, self._elapsed, self._wall = new_runner, elapsed, wall
        self._shard: LogShard | ShardedLog | None = None
        self._searches, self._creations = SharedRuns(self._search), SharedRuns(self._create)
        self._choice = InboxChoice(self._options, self._clock)
        self._notes = NoteObjects(bucket, Quarantine())
        self._poller = ClaimPoller(self._clock)  # while there is no log
        self.format_checked_at = elapsed()

    async def open(self) -> None:
        """Check that the bucket can be read. The first call that needs a replica loads it."""
        meta = await read_meta(self._bucket, is_opening=True)
        if meta is not None:
            self._use(meta)

    async def close(self) -> None:
        await self._searches.finish()
        await self._creations.finish()
        if self._shard is not None:
            await self._shard.close()
            self._shard = None  # a later call loads another replica

    # --- the log

    def _distrust(self) -> None:
        self._failures += 1
        if self._shard is not None:
            self._shard.distrust()

    async def _found(self) -> LogShard | ShardedLog | None:
        """The shards, or None if the log does not exist."""
        self._check_process()
        if self._shard is None:
            await self._searches.run()
        return self._shard

    async def _search(self) -> None:
        meta = await read_meta(self._bucket)
        if meta is not None:
            self._use(meta)

    async def _created(self) -> LogShard | ShardedLog:
        """The shards of a log that is created if it does not exist."""
        self._check_process()
        return self._shard or await self._creations.run()

    async def _create(self) -> LogShard | ShardedLog:
        if self._shard is not None:
            return self._shard
        start, failures = ProofStart(self._elapsed(), self._wall()), self._failures
        meta = await read_meta(self._bucket)
        if meta is not None:
            return self._use(meta)
        meta = await create_log(self._bucket, self._options.shard_count or 1, self._clock())
        is_known = self._shard is not None
        used = self._use(meta)
        # Otherwise the machine may have been suspended, or a read has found the log in the meantime.
        if self._failures == failures and not is_known and isinstance(used, LogShard):
            await used.access.begin_empty(start)
        self._poller.wake()
        return self._use(meta)

    def _use(self, meta: LogMeta) -> LogShard | ShardedLog:
        if self._options.shard_count not in {None, meta.shards}:
            raise InvalidSetting(
                f"shards={self._options.shard_count}: this queue was created with shards={meta.shards}, and the number"
                " cannot change; remove the option"
            )
        if self._shard is None:
            self._shard = self._new_shard(meta, 0) if meta.shards == 1 else self._new_sharded_log(meta)
        return self._shard

    def _new_sharded_log(self, meta: LogMeta) -> ShardedLog:
        poller, runners = new_poller(self._clock, meta.shards), SharedRunners(self._new_runner)
        shards = [self._new_shard(meta, shard, poller, runners.next) for shard in range(meta.shards)]
        return ShardedLog(shards, ShardOwners(self._bucket, meta.id, meta.shards), poller, self._clock)

    def _new_shard(
        self,
        meta: LogMeta,
        shard: int,
        poller: ClaimPoller | None = None,
        new_runner: Callable[[], Runner] | None = None,
    ) -> LogShard:
        access = ShardAccess(
            self._bucket,
            meta,
            shard,
            self._options,
            self._clock,
            new_runner=new_runner or self._new_runner,
            elapsed=self._elapsed,
            wall=self._wall,
            poller=poller,
        )
        return LogShard(access, self._clock)

    def _check_process(self) -> None:
        """Raise StorageError in a child process: it shares the replica's file, and has no threads."""
        if os.getpid() != self._process:
            raise StorageError("this queue was opened before the process forked; open another one in the child")

    async def _check_format(self) -> None:
        """Raise NewerFormat if a newer qo has excluded this build.

        A note is not a record, so writing it does not encounter the step.
        """
        asked_at = self._elapsed()
        if asked_at - self.format_checked_at >= FORMAT_CHECK_INTERVAL:
            await read_meta(self._bucket)
            self.format_checked_at = asked_at

    # --- writing

    async def now(self) -> float:
        return self._clock()

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        if not tasks:
            return []
        shard = await self._created()
        if isinstance(shard, ShardedLog):
            use_inbox = partial(self._choice.use_inbox, shard_count=len(shard.shards))
            return await shard.add(tasks, use_inbox)
        if await self._choice.use_inbox(shard, tasks):
            return await shard.submit(tasks)
        now = self._clock()
        at = stamps(now, len(tasks))  # of a batch that is divided

        async def commit(places: Sequence[int]) -> list[Added]:
            if len(places) == len(tasks):
                return await shard.add(tasks)
            return await shard.add_part([tasks[place] for place in places], [at[place] for place in places], now)

        return await write_in_batches([len(task.payload) for task in tasks], commit)

    async def claim(self, request: ClaimRequest) -> list[Task]:
        shard = await self._found()
        return [] if shard is None else await shard.claim(request)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        shard = await self._found()
        if shard is None:
            return [False] * len(changes)
        return await (shard.apply(changes) if isinstance(shard, ShardedLog) else shard.apply_all(changes))

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        shard = await self._found()
        return [False] * len(ids) if shard is None else await shard.delete(ids)

    async def repair(self) -> int:
        shard = await self._found()
        return 0 if shard is None else await shard.repair()

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        shard = await self._found()
        return [None] * len(ids) if shard is None else await shard.get(ids)

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        page_start(after, created_before)  # an invalid cursor is an error in an empty log, too
        shard = await self._found()
        if shard is None:
            return []
        return await shard.find(where, limit=limit, after=after, created_before=created_before)

    async def snapshot(self) -> Snapshot:
        shard = await self._found()
        return Snapshot([]) if shard is None else await shard.snapshot()

    async def count(self, batch: str | None = None) -> Counts:
        shard = await self._found()
        return {} if shard is None else await shard.count(batch)

    async def history(self, task_id: str) -> list[Event]:
        shard = await self._found()
        return [] if shard is None else await shard.history(task_id)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        async def poll() -> PollResult:
            return PollResult(await self._found() is not None, None)

        self._check_process()
        if self._shard is None:
            await self._poller.wait(poll, timeout)
        else:
            await self._shard.wait(request, timeout)

    # --- notes

    async def read_note(self, name: str) -> Note | None:
        if not name.startswith(_ROW_NOTES):
            return await self._notes.read(name)
        shard = await self._found()
        return None if shard is None else await shard.read_note(name)

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        if name.startswith(_ROW_NOTES):
            return await (await self._created()).write_note(name, data, expected=expected)
        await self._check_format()
        return await self._notes.write(name, data, expected)

    async def notes(self, prefix: str) -> list[Note]:
        found = await self._notes.find(prefix)
        if any(rows.startswith(prefix) or prefix.startswith(rows) for rows in _ROW_NOTES):
            shard = await self._found()
            found += [] if shard is None else await shard.notes(prefix)
        return sorted(found, key=lambda note: note.name)

    async def drop_note(self, name: str) -> None:
        if not name.startswith(_ROW_NOTES):
            await self._check_format()
            await self._notes.drop(name)
        elif (shard := await self._found()) is not None:
            await shard.drop_note(name)
