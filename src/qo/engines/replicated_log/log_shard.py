"""The engine port over one shard of a log."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import DamageLog
from qo.engine import Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import ClaimPoller, PollBackoff, PollResult
from qo.engines.replicated_log.catch_up import CatchUp
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.claim_shares import ClaimCandidate, ClaimShare
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
from qo.engines.replicated_log.record_batches import write_in_batches
from qo.engines.replicated_log.record_store import LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.engines.replicated_log.shard_calls import ShardCalls, ShardReplica
from qo.engines.replicated_log.shard_inbox import ShardInbox
from qo.engines.replicated_log.submission_batch import forget_producers, old_producers
from qo.engines.replicated_log.submissions import SubmissionStream
from qo.engines.replicated_log.tail_proof import ProofStart, TailProof
from qo.engines.table_engine import Answer, TableEngine
from qo.errors import QoError
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Status,
    Task,
    check_distinct,
    page_start,
)
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow, DamageFound, around_damage
from qo.sqlite_tables.segments import SegmentNeeded
from qo.sqlite_tables.table import SqliteTable

log = logging.getLogger("qo.engines.replicated_log")
_CLOSE_TIMEOUT = 30.0
_FIRST_POLL_INTERVAL = 0.01  # seconds: a poll reads one small object, or finds none
# Until a minute without tasks has passed: a task that arrives in that minute starts soon, and its reads cost $0.0001.
_SHARD_POLL_INTERVAL, _MAX_POLL_INTERVAL = 0.25, 5.0
_IDLE_POLL_INTERVAL = 15.0  # seconds, later; a read by the monitor of the process counts as a poll
_LISTING_INTERVAL = 1.0  # seconds between polls from which on a poll is a listing
_MAX_COUNT_AGE = 1.0  # seconds
_MAX_CANDIDATE_AGE = 0.5  # seconds
_CONTENTION_TIME, _READING_TIME = 120.0, 30.0  # seconds
_MAX_WRITTEN = 100  # keys of this process's submissions
_ALL = 2**31 - 1  # tasks
_TASK_SIZE = 500  # bytes of a task in a record besides its payload and result, roughly


def new_poller(clock: Clock, shards: int = 1) -> ClaimPoller:
    longest = min(_MAX_POLL_INTERVAL, _SHARD_POLL_INTERVAL * shards)
    return ClaimPoller(clock, PollBackoff(first=_FIRST_POLL_INTERVAL, longest=longest, idle=_IDLE_POLL_INTERVAL))


class LogShard(TableEngine):
    """The replica is loaded by the first call that needs it."""

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
        super().__init__(clock)
        log_id, self._first_schema = meta.id, meta.first_schema
        self._bucket, self._log, self._shard, self._options = bucket, log_id, shard, options
        self._place = shard_prefix(log_id, shard).removesuffix("/")
        self._proof = proof = TailProof(options.trust, elapsed, wall)
        self._checkpoints = CheckpointStore(bucket, log_id, shard)
        run_codec = new_runner()  # a separate runner: a commit does not wait for an image that is compressed
        self._records = RecordStore(bucket, log_id, shard, proof.reset, run=run_codec)
        self._maintenance = LogMaintenance(bucket, meta, shard, options, new_runner=new_runner)
        self._live = LiveReplica(self._maintenance.load, new_runner)
        self._catch_up = CatchUp(
            self._records,
            self._live,
            proof,
            self._checkpoints,
            merged=MergedRecords(bucket, log_id, shard, run_codec),
            block_size=options.block_size,
            applied=self._applied,
            damaged=self._maintenance.report,
        )
        self._inbox = ShardInbox(
            bucket,
            log_id,
            shard,
            last_record=lambda: self._live.position.seq,
            set_aside=self._set_aside,
            thaw=self._thaw,
            elapsed=elapsed,
            wall=wall,
        )
        self._stream = SubmissionStream(bucket, log_id, shard, elapsed=elapsed, wall=wall)
        self._commits = LogCommits(
            bucket,
            log_id,
            shard,
            clock,
            live=self._live,
            records=self._records,
            proof=proof,
            catch_up=self._catch_up,
            inbox=self._inbox,
            committed=self._committed,
        )
        access = ShardReplica(self._live, self._catch_up, self._commits, self._maintenance.shrank, proof.reset)
        store = ColdStore(bucket, log_id, shard, run_codec)
        self._cold = ColdSegments(store, self._checkpoints, options, access, run_codec)
        self._reads = ColdReads(store, access, run_codec)
        self._calls = ShardCalls(self._commits, self._cold, self._set_aside)
        self._poller, self._has_own_poller = poller or new_poller(clock), poller is None
        self._damage_log = DamageLog()
        self._hand_backs = HandBacks(self.apply)
        self._used_at = float("-inf")  # when this process did anything but submit

    async def open(self) -> None:
        """Does nothing: the log was found, and the first call loads the replica."""

    async def begin_empty(self, since: ProofStart) -> None:
        """Use an empty replica without a request: the log did not exist at `since`, and was created after that."""
        self._proof.proved(since)  # before the wait: a request that fails in the meantime withdraws it
        await self._live.begin(lambda: Replica(self._place, schema=self._first_schema))

    def distrust(self) -> None:
        """A request of this process failed. The machine may have been suspended together with its clocks."""
        self._proof.reset()

    async def close(self) -> None:
        await self._commits.finish(_CLOSE_TIMEOUT)  # may leave tasks to hand back
        await self._hand_backs.finish(timeout=_CLOSE_TIMEOUT)
        await self._commits.finish(_CLOSE_TIMEOUT)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._inbox.finish(), _CLOSE_TIMEOUT)
        await self._catch_up.finish(_CLOSE_TIMEOUT)
        await self._maintenance.finish()
        await self._live.close()

    def _applied(self, record: LogRecord) -> None:
        self._maintenance.applied(record)
        self._commits.saw(record)

    def _committed(self, record: LogRecord) -> None:
        if self._maintenance.committed(record, self._live):
            self._maintenance.start(self._freeze_deep())

    # --- the tables

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the commit claims nothing; one cancelled during it hands its tasks back."""

        async def ask() -> list[Task]:
            return await self._claim(lambda table: table.claim(request, self._clock()), request, may_combine=True)

        await self._cold.try_again_late()
        if await self._is_drained(request):
            return []
        await self._consume_own()
        claimed = await ask()
        return await ask() if not claimed and await self._has_late_batch() else claimed

    async def claim_share(self, share: ClaimShare) -> list[Task]:
        """The part of a claim from several shards, in no particular order."""
        request, of_lanes = share
        await self._consume_own()
        return await self._claim(lambda table: table.claim_of(of_lanes, request, self._clock()), request)

    async def _claim(
        self, work: Callable[[SqliteTable], list[Task]], request: ClaimRequest, *, may_combine: bool = False
    ) -> list[Task]:
        return await self._calls.ask(work, self._hand_backs.start, request=request, may_combine=may_combine)

    async def _is_drained(self, request: ClaimRequest) -> bool:
        """Whether one listing shows that there is nothing to claim, for a worker that has found nothing for a while."""
        if self._poller.backoff.next < _LISTING_INTERVAL or request.is_repeat or not await self._look():
            return False
        try:
            return self._live.is_open and not await self._live.read(
                lambda replica: replica.candidates(request, self._clock())
            )
        except (SegmentNeeded, DamageFound):
            return False

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        return await self._add(tasks, lambda table: table.add(tasks, self._clock()))

    async def add_part(self, tasks: Sequence[NewTask], at: Sequence[float], now: float) -> list[Added]:
        """Add the tasks of a batch that belong to this shard, with their stamps and the last stamp of the batch."""
        return await self._add(tasks, lambda table: table.add(tasks, now, at))

    async def _add(self, tasks: Sequence[NewTask], work: Callable[[SqliteTable], list[Added]]) -> list[Added]:
        size = sum(_TASK_SIZE + len(task.payload) for task in tasks)
        added = await self._commit(work, size, is_submitting=True)
        self._wake()
        return added

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        size = sum(_TASK_SIZE + change.size for change in changes)
        applied = await self._commit(lambda table: table.apply(changes, self._clock()), size)
        if any(change.to is Status.PENDING for change in changes):
            self._wake()
        return applied

    async def apply_all(self, changes: Sequence[Change]) -> list[bool]:
        """Apply the changes in as many records as they need."""

        async def commit(places: Sequence[int]) -> list[bool]:
            return await self.apply([changes[place] for place in places])

        return await write_in_batches([change.size for change in changes], commit)

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await self._commit(work, 0, abandoned)

    async def _commit(
        self,
        work: Callable[[SqliteTable], Answer],
        size: int,
        abandoned: Callable[[Answer], None] | None = None,
        *,
        is_submitting: bool = False,
    ) -> Answer:
        await self._consume_own(is_submitting=is_submitting)
        return await self._calls.ask(work, abandoned, size=size)

    async def _thaw(self, numbers: Sequence[int]) -> None:
        await self._cold.thaw(numbers)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        """Reads the inbox only for tasks that the log does not have."""
        found = await self._read_cold(lambda: self._reads.get(ids))
        if None not in found:
            return found
        is_current = await self._look()
        return await self._read_cold(lambda: self._reads.get(ids, is_current=is_current))

    async def history(self, task_id: str) -> list[Event]:
        events = await self._read_cold(lambda: self._reads.history(task_id))
        if events:
            return events
        is_current = await self._look()
        return await self._read_cold(lambda: self._reads.history(task_id, is_current=is_current))

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        is_current = await self._look()
        return await self._read_cold(
            lambda: self._reads.find(where, limit, start, self._clock(), is_current=is_current)
        )

    async def _look(self) -> bool:
        """Look for submissions, and add them. Returns whether the replica has every record that existed at the call.

        The listing for submissions shows records too, so a read of the next one may be superfluous.
        """
        await self._consume_own()
        is_known = self._live.is_open and not self._live.is_behind
        start, setbacks = self._proof.begin(), self._live.setbacks
        has_news = await self._inbox.look(self._commit_nothing, with_records=is_known)
        if has_news:
            self._poller.poll_soon()
        # A young proof: otherwise records that were deleted may be missing in the listing.
        if has_news is not False or self._live.setbacks != setbacks or not self._proof.is_trusted():
            return False
        self._proof.proved(start)
        if self._has_own_poller:
            self._poller.postpone()
        return True

    async def _read_cold(self, read: Callable[[], Awaitable[Answer]]) -> Answer:
        """Read the tables and the segments."""
        await self._consume_own()
        return await around_damage(read, self._set_aside)

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        if await self._look():
            return await around_damage(lambda: self._live.read(lambda replica: replica.read(work)), self._set_aside)
        return await self._read_records(work)

    async def _read_records(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await around_damage(lambda: self._current(lambda replica: replica.read(work)), self._set_aside)

    async def _current(self, work: Callable[[Replica], Answer]) -> Answer:
        """Run work on a replica that has every record which existed when this was called."""
        await self._consume_own()
        await self._catch_up.run()
        while not self._live.is_open:  # a commit has found that the replica is stale
            await self._catch_up.run()
        return await self._live.read(work)

    async def count(self, batch: str | None = None) -> Counts:
        """The counts of all tasks may be a second old, so that a server which counts often makes few requests.

        Those of a batch are exact: a caller that waits for a batch must not find it empty because its tasks are in the
        inbox.
        """
        is_recent = self._live.is_open and not self._stream.written and self._proof.is_younger_than(_MAX_COUNT_AGE)
        if batch is None and is_recent:
            return await self._live.read(lambda replica: replica.read(lambda reader: reader.count()))
        return await super().count(batch)

    async def snapshot(self) -> Snapshot:
        now = self._clock()
        await self._look()
        version = await self._current(lambda replica: replica.position.seq)  # the tasks may be newer, and not older
        return Snapshot(await self._read_cold(lambda: self._reads.find(Filter(), _ALL, None, now)), version)

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._commits.ask(lambda table: table.set_aside(bad)))

    def _wake(self) -> None:
        self._poller.wake()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self._poller.wait(lambda: self.poll(request), timeout, peek=lambda: self._peek(request))

    async def poll(self, request: ClaimRequest, *, is_exact: bool = False) -> PollResult:
        """Poll the bucket for new records and submissions.

        `is_exact`: report only tasks that this request can claim.
        """
        await self._notice_news()
        return await self._peek(request, is_exact=is_exact)

    async def _peek(self, request: ClaimRequest, *, is_exact: bool = False) -> PollResult:
        """As `poll`, in the replica as it is."""

        def poll(replica: Replica) -> PollResult:
            now = self._clock()
            try:
                is_ready = bool(replica.candidates(request, now)) if is_exact else replica.has_ready(request, now)
            except SegmentNeeded:
                is_ready = True
            return PollResult(self._inbox.has_batch or is_ready, replica.next_at())

        await self._cold.try_again_late()
        return await self._live.read(poll) if self._live.is_open else await self._current(poll)

    async def candidates(self, request: ClaimRequest, now: float, *, is_fresh: bool) -> list[ClaimCandidate]:
        """The tasks that a claim may lease. Unless `is_fresh`, they may be half a second old."""

        def work(replica: Replica) -> list[ClaimCandidate]:
            return replica.candidates(request, now)

        async def ask() -> list[ClaimCandidate]:
            await self._consume_own()
            if self._inbox.next_call(now, is_claiming=True) is not None:
                await self._commit_nothing()
            is_known = self._live.is_open and self._proof.is_younger_than(_MAX_CANDIDATE_AGE)
            found = await (self._live.read(work) if is_known and not is_fresh else self._current(work))
            if not found and await self._has_late_batch():
                await self._commit_nothing()
                found = await self._current(work)
            return found

        await self._cold.try_again_late()
        return await self._calls.read_candidates(ask)

    async def leased_under(self, lease_id: str) -> list[Task]:
        """The tasks that a claim has leased in this shard."""
        now = self._clock()
        return await self._read_records(lambda reader: reader.leased_under(lease_id, now))

    async def _notice_news(self) -> None:
        """Poll for records and submissions.

        A listing shows both; a read of the next record is quicker and shows only records. A process that polls rarely
        lists. One that polls often reads, and also lists if submissions arrive.
        """
        if self._poller.backoff.next >= _LISTING_INTERVAL and self._live.is_open:
            if await self._inbox.scan():
                await self._catch_up.run()
        else:
            look = self._inbox.scan if self._inbox.is_due else self._inbox.read_streams
            has_records, _ = await asyncio.gather(self._catch_up.run(), look())
            if has_records:
                self._inbox.expect()

    # --- submissions

    @property
    def is_open(self) -> bool:
        """Whether this process has a replica."""
        return self._live.is_open

    @property
    def prefers_inbox(self) -> bool:
        """Whether this process only submits, and has met another one lately that writes to the log."""
        now = asyncio.get_running_loop().time()
        return now - self._commits.rivalled_at < _CONTENTION_TIME and now - self._used_at > _READING_TIME

    async def submit(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Leave the tasks for another process, which adds them to the log."""
        added = await self._stream.submit(tasks)
        if len(self._stream.written) > _MAX_WRITTEN:  # the last one of a producer stands for all before it
            self._stream.written = set({key.rpartition("/")[0]: key for key in sorted(self._stream.written)}.values())
        self._wake()
        return added

    async def image_size(self) -> int:
        """The stored bytes of the newest image, which a process without a replica would have to read."""
        newest = (await self._checkpoints.read()).newest_image
        return newest.bytes if newest is not None else 0

    async def _consume_own(self, *, is_submitting: bool = False) -> None:
        """Add what this process has submitted, before it reads or changes the tables."""
        if not is_submitting:
            self._used_at = asyncio.get_running_loop().time()
        if self._stream.written:
            own = frozenset(self._stream.written)
            await self._inbox.consume_all(self._commit_nothing, own)
            self._stream.written -= own

    async def _has_late_batch(self) -> bool:
        """List before a worker that found no task goes idle, or ends because the queue is empty."""
        await self._inbox.look_late()
        return self._inbox.has_batch

    async def _commit_nothing(self) -> None:
        """Commit what waits in the inbox."""
        await self._commits.ask(lambda _: None)

    async def repair(self) -> int:
        """Add all submissions, forget producers that ended long ago, compact the log and delete what is not needed."""
        repairs = await self._inbox.consume_all(self._commit_nothing)
        repairs += await self._forget_producers(self._clock())
        await self._current(lambda _: None)
        repairs += await self._freeze()
        return repairs + await self._maintenance.repair(self._live) + await self._cold.collect()

    async def _freeze(self) -> int:
        """Move tasks into segments. An error does not end the repair, because the log must be compacted anyway."""
        await self._cold.try_again()
        now = self._clock()
        try:
            return await around_damage(lambda: self._cold.freeze(now, with_history=True), self._set_aside)
        except QoError as error:
            log.warning("%s: tasks were not moved into segments; the next repair tries again: %s", self._place, error)
            return 0

    async def _freeze_deep(self) -> None:
        await around_damage(lambda: self._cold.freeze(self._clock(), with_history=False), self._set_aside)

    async def _forget_producers(self, now: float) -> int:
        idle = await self._inbox.idle_producers(await self._commits.ask(lambda table: old_producers(table, now)))
        if idle:
            await self._commits.ask(lambda table: forget_producers(table, idle, now))
        return len(idle)
