"""How calls reach the tables of one shard: writes through the group commit, reads from the replica or from segments.

Before a call uses the tables, the process adds the tasks that it left in the inbox itself.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import DamageLog
from qo.engines.polling import ClaimPoller, PollBackoff
from qo.engines.replicated_log.catch_up import CatchUp
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.cold_reads import ColdReads
from qo.engines.replicated_log.cold_segments import ColdSegments
from qo.engines.replicated_log.cold_store import ColdStore
from qo.engines.replicated_log.commits import LogCommits
from qo.engines.replicated_log.keys import shard_prefix
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.log_maintenance import LogMaintenance
from qo.engines.replicated_log.log_meta import LogMeta
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.merged_records import MergedRecords
from qo.engines.replicated_log.record_store import LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.engines.replicated_log.shard_calls import ShardCalls, ShardReplica
from qo.engines.replicated_log.shard_inbox import ShardInbox
from qo.engines.replicated_log.submission_batch import forget_producers, old_producers
from qo.engines.replicated_log.submissions import SubmissionStream
from qo.engines.replicated_log.tail_proof import ProofStart, TailProof
from qo.engines.table_engine import Answer
from qo.errors import QoError
from qo.model import (
    Added,
    NewTask,
)
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow, around_damage
from qo.sqlite_tables.table import SqliteTable

log = logging.getLogger("qo.engines.replicated_log")
CLOSE_TIMEOUT = 30.0  # seconds
_FIRST_POLL_INTERVAL = 0.01  # seconds: a poll reads one small object, or finds none
# Until a minute without tasks has passed: a task that arrives in that minute starts soon, and its reads cost $0.0001.
_SHARD_POLL_INTERVAL, _MAX_POLL_INTERVAL = 0.25, 5.0
_IDLE_POLL_INTERVAL = 15.0  # seconds, later; a read by the monitor of the process counts as a poll
_LISTING_INTERVAL = 1.0  # seconds between polls from which on a poll is a listing
_CONTENTION_TIME, _READING_TIME = 120.0, 30.0  # seconds
_MAX_WRITTEN = 100  # keys of this process's submissions


def new_poller(clock: Clock, shards: int = 1) -> ClaimPoller:
    longest = min(_MAX_POLL_INTERVAL, _SHARD_POLL_INTERVAL * shards)
    return ClaimPoller(clock, PollBackoff(first=_FIRST_POLL_INTERVAL, longest=longest, idle=_IDLE_POLL_INTERVAL))


class ShardAccess:
    """Builds the parts of a shard. The replica is loaded by the first call that needs it."""

    def __init__(
        self,
        bucket: Bucket,
        meta: LogMeta,
        shard: int,
        options: LogOptions,
        clock: Clock,
        *,
        new_runner: Callable[[], Runner],
        elapsed: Clock,
        wall: Clock,
        poller: ClaimPoller | None = None,
    ) -> None:
        """`poller`: the one of all shards of a log, if there are several."""
        self._clock = clock
        log_id, self._first_schema = meta.id, meta.first_schema
        self._place = shard_prefix(log_id, shard).removesuffix("/")
        self.proof = proof = TailProof(options.trust, elapsed, wall)
        self._checkpoints = CheckpointStore(bucket, log_id, shard)
        run_codec = new_runner()  # a separate runner: a commit does not wait for an image that is compressed
        records = RecordStore(bucket, log_id, shard, proof.reset, run=run_codec)
        self._maintenance = LogMaintenance(bucket, meta, shard, options, new_runner=new_runner)
        self.live = LiveReplica(self._maintenance.load, new_runner)
        self._catch_up = CatchUp(
            records,
            self.live,
            proof,
            self._checkpoints,
            merged=MergedRecords(bucket, log_id, shard, run_codec),
            block_size=options.block_size,
            applied=self._applied,
            damaged=self._maintenance.report,
        )
        self.inbox = ShardInbox(
            bucket,
            log_id,
            shard,
            last_record=lambda: self.live.position.seq,
            set_aside=self.set_aside,
            thaw=self._thaw,
            elapsed=elapsed,
            wall=wall,
        )
        self.stream = SubmissionStream(bucket, log_id, shard, elapsed=elapsed, wall=wall)
        self._commits = LogCommits(
            bucket,
            log_id,
            shard,
            clock,
            live=self.live,
            records=records,
            proof=proof,
            catch_up=self._catch_up,
            inbox=self.inbox,
            committed=self._committed,
        )
        replica = ShardReplica(self.live, self._catch_up, self._commits, self._maintenance.shrank, proof.reset)
        store = ColdStore(bucket, log_id, shard, run_codec)
        self.cold = ColdSegments(store, self._checkpoints, options, replica, run_codec)
        self.reads = ColdReads(store, replica, run_codec)
        self.calls = ShardCalls(self._commits, self.cold, self.set_aside)
        self.poller, self._has_own_poller = poller or new_poller(clock), poller is None
        self._damage_log = DamageLog()
        self._used_at = float("-inf")  # when this process did anything but submit

    async def begin_empty(self, since: ProofStart) -> None:
        """Use an empty replica without a request: the log did not exist at `since`, and was created after that."""
        self.proof.proved(since)  # before the wait: a request that fails in the meantime withdraws it
        await self.live.begin(lambda: Replica(self._place, schema=self._first_schema))

    async def finish_commits(self) -> None:
        """Wait for the commits of calls, also of those whose callers were cancelled."""
        await self._commits.finish(CLOSE_TIMEOUT)

    async def close(self) -> None:
        """Call it after the commits have ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.inbox.finish(), CLOSE_TIMEOUT)
        await self._catch_up.finish(CLOSE_TIMEOUT)
        await self._maintenance.finish()
        await self.live.close()

    def _applied(self, record: LogRecord) -> None:
        self._maintenance.applied(record)
        self._commits.saw(record)

    def _committed(self, record: LogRecord) -> None:
        if self._maintenance.committed(record, self.live):
            self._maintenance.start(self._freeze_deep())

    # --- the tables

    async def commit(
        self,
        work: Callable[[SqliteTable], Answer],
        size: int,
        abandoned: Callable[[Answer], None] | None = None,
        *,
        is_submitting: bool = False,
    ) -> Answer:
        """Commit work on the tables. `size`: its bytes in a record, roughly."""
        await self.consume_own(is_submitting=is_submitting)
        return await self.calls.ask(work, abandoned, size=size)

    async def _thaw(self, numbers: Sequence[int]) -> None:
        await self.cold.thaw(numbers)

    async def set_aside(self, bad: list[BadRow]) -> None:
        """Move damaged rows out of the tables, and log them."""
        self._damage_log.report(await self._commits.ask(lambda table: table.set_aside(bad)))

    async def look(self) -> bool:
        """Look for submissions, and add them. Returns whether the replica has every record that existed at the call.

        The listing for submissions shows records too, so a read of the next one may be superfluous.
        """
        await self.consume_own()
        is_known = self.live.is_open and not self.live.is_behind
        start, setbacks = self.proof.begin(), self.live.setbacks
        has_news = await self.inbox.look(self.commit_nothing, with_records=is_known)
        if has_news:
            self.poller.poll_soon()
        # A young proof: otherwise records that were deleted may be missing in the listing.
        if has_news is not False or self.live.setbacks != setbacks or not self.proof.is_trusted():
            return False
        self.proof.proved(start)
        if self._has_own_poller:
            self.poller.postpone()
        return True

    async def read_cold(self, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """Read the tables and the segments."""
        await self.consume_own()
        return await around_damage(read, self.set_aside)

    async def read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        """Read the tables, after submissions that existed when this was called were added."""
        if await self.look():
            return await around_damage(lambda: self.live.read(lambda replica: replica.read(work)), self.set_aside)
        return await self.read_records(work)

    async def read_records(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        """As `read`, without looking for submissions."""
        return await around_damage(lambda: self.current(lambda replica: replica.read(work)), self.set_aside)

    async def current(self, work: Callable[[Replica], Answer]) -> Answer:
        """Run work on a replica that has every record which existed when this was called."""
        await self.consume_own()
        await self._catch_up.run()
        while not self.live.is_open:  # a commit has found that the replica is stale
            await self._catch_up.run()
        return await self.live.read(work)

    # --- submissions

    @property
    def is_open(self) -> bool:
        """Whether this process has a replica."""
        return self.live.is_open

    @property
    def polls_rarely(self) -> bool:
        """Whether this process has found no task for a while, so that a poll is a listing."""
        return self.poller.backoff.next >= _LISTING_INTERVAL

    @property
    def prefers_inbox(self) -> bool:
        """Whether this process only submits, and has met another one lately that writes to the log."""
        now = asyncio.get_running_loop().time()
        return now - self._commits.rivalled_at < _CONTENTION_TIME and now - self._used_at > _READING_TIME

    def is_recent(self, seconds: float) -> bool:
        """Whether the replica had every record of the log at most so many seconds ago."""
        return self.live.is_open and self.proof.is_younger_than(seconds)

    async def submit(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Leave the tasks for another process, which adds them to the log."""
        added = await self.stream.submit(tasks)
        if len(self.stream.written) > _MAX_WRITTEN:  # the last one of a producer stands for all before it
            self.stream.written = set({key.rpartition("/")[0]: key for key in sorted(self.stream.written)}.values())
        self.poller.wake()
        return added

    async def image_size(self) -> int:
        """The stored bytes of the newest image, which a process without a replica would have to read."""
        newest = (await self._checkpoints.read()).newest_image
        return newest.bytes if newest is not None else 0

    async def consume_own(self, *, is_submitting: bool = False) -> None:
        """Add what this process has submitted, before it reads or changes the tables."""
        if not is_submitting:
            self._used_at = asyncio.get_running_loop().time()
        if self.stream.written:
            own = frozenset(self.stream.written)
            await self.inbox.consume_all(self.commit_nothing, own)
            self.stream.written -= own

    async def has_late_batch(self) -> bool:
        """List before a worker that found no task goes idle, or ends because the queue is empty."""
        await self.inbox.look_late()
        return self.inbox.has_batch

    async def commit_nothing(self) -> None:
        """Commit what waits in the inbox."""
        await self._commits.ask(lambda _: None)

    async def notice_news(self) -> None:
        """Poll for records and submissions.

        A listing shows both; a read of the next record is quicker and shows only records. A process that polls rarely
        lists. One that polls often reads, and also lists if submissions arrive.
        """
        if self.polls_rarely and self.live.is_open:
            if await self.inbox.scan():
                await self._catch_up.run()
        else:
            look = self.inbox.scan if self.inbox.is_due else self.inbox.read_streams
            has_records, _ = await asyncio.gather(self._catch_up.run(), look())
            if has_records:
                self.inbox.expect()

    # --- maintenance

    async def repair(self) -> int:
        """Add all submissions, forget producers that ended long ago, compact the log and delete what is not needed."""
        repairs = await self.inbox.consume_all(self.commit_nothing)
        repairs += await self._forget_producers(self._clock())
        await self.current(lambda _: None)
        repairs += await self._freeze()
        return repairs + await self._maintenance.repair(self.live) + await self.cold.collect()

    async def _freeze(self) -> int:
        """Move tasks into segments. An error does not end the repair, because the log must be compacted anyway."""
        await self.cold.try_again()
        now = self._clock()
        try:
            return await around_damage(lambda: self.cold.freeze(now, with_history=True), self.set_aside)
        except QoError as error:
            log.warning("%s: tasks were not moved into segments; the next repair tries again: %s", self._place, error)
            return 0

    async def _freeze_deep(self) -> None:
        await around_damage(lambda: self.cold.freeze(self._clock(), with_history=False), self.set_aside)

    async def _forget_producers(self, now: float) -> int:
        idle = await self.inbox.idle_producers(await self._commits.ask(lambda table: old_producers(table, now)))
        if idle:
            await self._commits.ask(lambda table: forget_producers(table, idle, now))
        return len(idle)
