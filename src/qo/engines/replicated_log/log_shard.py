"""The engine port over one shard of a log."""

from collections.abc import Callable, Sequence

from qo.clock import Clock
from qo.engine import Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import PollResult
from qo.engines.replicated_log.claim_shares import ClaimCandidate, ClaimShare
from qo.engines.replicated_log.record_batches import write_in_batches
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.shard_access import CLOSE_TIMEOUT, ShardAccess
from qo.engines.table_engine import Answer, TableEngine
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
from qo.sqlite_tables.rows import DamageFound
from qo.sqlite_tables.segments import SegmentNeeded
from qo.sqlite_tables.table import SqliteTable

_MAX_COUNT_AGE = 1.0  # seconds
_MAX_CANDIDATE_AGE = 0.5  # seconds
_ALL = 2**31 - 1  # tasks
_TASK_SIZE = 500  # bytes of a task in a record besides its payload and result, roughly


class LogShard(TableEngine):
    """The replica is loaded by the first call that needs it."""

    def __init__(self, access: ShardAccess, clock: Clock) -> None:
        super().__init__(clock)
        self.access = access  # to the tables, and to the inbox
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Does nothing: the log was found, and the first call loads the replica."""

    async def close(self) -> None:
        await self.access.finish_commits()  # may leave tasks to hand back
        await self._hand_backs.finish(timeout=CLOSE_TIMEOUT)
        await self.access.finish_commits()
        await self.access.close()

    # --- the tables

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the commit claims nothing; one cancelled during it hands its tasks back."""

        async def ask() -> list[Task]:
            return await self._claim(lambda table: table.claim(request, self._clock()), request, may_combine=True)

        await self.access.cold.try_again_late()
        if await self._is_drained(request):
            return []
        await self.access.consume_own()
        claimed = await ask()
        return await ask() if not claimed and await self.access.has_late_batch() else claimed

    async def claim_share(self, share: ClaimShare) -> list[Task]:
        """The part of a claim from several shards, in no particular order."""
        request, of_lanes = share
        await self.access.consume_own()
        return await self._claim(lambda table: table.claim_of(of_lanes, request, self._clock()), request)

    async def _claim(
        self, work: Callable[[SqliteTable], list[Task]], request: ClaimRequest, *, may_combine: bool = False
    ) -> list[Task]:
        return await self.access.calls.ask(work, self._hand_backs.start, request=request, may_combine=may_combine)

    async def _is_drained(self, request: ClaimRequest) -> bool:
        """Whether one listing shows that there is nothing to claim, for a worker that has found nothing for a while."""
        if not self.access.polls_rarely or request.is_repeat or not await self.access.look():
            return False
        try:
            return self.access.live.is_open and not await self.access.live.read(
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
        added = await self.access.commit(work, size, is_submitting=True)
        self._wake()
        return added

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        size = sum(_TASK_SIZE + change.size for change in changes)
        applied = await self.access.commit(lambda table: table.apply(changes, self._clock()), size)
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
        return await self.access.commit(work, 0, abandoned)

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await self.access.read(work)

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        """Reads the inbox only for tasks that the log does not have."""
        found = await self.access.read_cold(lambda: self.access.reads.get(ids))
        if None not in found:
            return found
        is_current = await self.access.look()
        return await self.access.read_cold(lambda: self.access.reads.get(ids, is_current=is_current))

    async def history(self, task_id: str) -> list[Event]:
        events = await self.access.read_cold(lambda: self.access.reads.history(task_id))
        if events:
            return events
        is_current = await self.access.look()
        return await self.access.read_cold(lambda: self.access.reads.history(task_id, is_current=is_current))

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        is_current = await self.access.look()
        return await self.access.read_cold(
            lambda: self.access.reads.find(where, limit, start, self._clock(), is_current=is_current)
        )

    async def count(self, batch: str | None = None) -> Counts:
        """The counts of all tasks may be a second old, so that a server which counts often makes few requests.

        Those of a batch are exact: a caller that waits for a batch must not find it empty because its tasks are in the
        inbox.
        """
        if batch is None and not self.access.stream.written and self.access.is_recent(_MAX_COUNT_AGE):
            return await self.access.live.read(lambda replica: replica.read(lambda reader: reader.count()))
        return await super().count(batch)

    async def snapshot(self) -> Snapshot:
        now = self._clock()
        await self.access.look()
        version = await self.access.current(lambda replica: replica.position.seq)  # the tasks may be newer
        return Snapshot(await self.access.read_cold(lambda: self.access.reads.find(Filter(), _ALL, None, now)), version)

    def _wake(self) -> None:
        self.access.poller.wake()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        await self.access.poller.wait(lambda: self.poll(request), timeout, peek=lambda: self._peek(request))

    async def poll(self, request: ClaimRequest, *, is_exact: bool = False) -> PollResult:
        """Poll the bucket for new records and submissions.

        `is_exact`: report only tasks that this request can claim.
        """
        await self.access.notice_news()
        return await self._peek(request, is_exact=is_exact)

    async def _peek(self, request: ClaimRequest, *, is_exact: bool = False) -> PollResult:
        """As `poll`, in the replica as it is."""

        def poll(replica: Replica) -> PollResult:
            now = self._clock()
            try:
                is_ready = bool(replica.candidates(request, now)) if is_exact else replica.has_ready(request, now)
            except SegmentNeeded:
                is_ready = True
            return PollResult(self.access.inbox.has_batch or is_ready, replica.next_at())

        await self.access.cold.try_again_late()
        return await self.access.live.read(poll) if self.access.live.is_open else await self.access.current(poll)

    async def candidates(self, request: ClaimRequest, now: float, *, is_fresh: bool) -> list[ClaimCandidate]:
        """The tasks that a claim may lease. Unless `is_fresh`, they may be half a second old."""

        def work(replica: Replica) -> list[ClaimCandidate]:
            return replica.candidates(request, now)

        async def ask() -> list[ClaimCandidate]:
            await self.access.consume_own()
            if self.access.inbox.next_call(now, is_claiming=True) is not None:
                await self.access.commit_nothing()
            is_known = self.access.is_recent(_MAX_CANDIDATE_AGE)
            found = await (self.access.live.read(work) if is_known and not is_fresh else self.access.current(work))
            if not found and await self.access.has_late_batch():
                await self.access.commit_nothing()
                found = await self.access.current(work)
            return found

        await self.access.cold.try_again_late()
        return await self.access.calls.read_candidates(ask)

    async def leased_under(self, lease_id: str) -> list[Task]:
        """The tasks that a claim has leased in this shard."""
        now = self._clock()
        return await self.access.read_records(lambda reader: reader.leased_under(lease_id, now))

    # --- submissions and maintenance

    async def submit(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Leave the tasks for another process, which adds them to the log."""
        return await self.access.submit(tasks)

    async def repair(self) -> int:
        """Add all submissions, forget producers that ended long ago, compact the log and delete what is not needed."""
        return await self.access.repair()

    def distrust(self) -> None:
        """A request of this process failed. The machine may have been suspended together with its clocks."""
        self.access.proof.reset()
