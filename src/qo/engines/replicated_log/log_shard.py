"""The engine port over one shard of a log."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import DamageLog
from qo.engine import Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import ClaimPoller, PollBackoff, PollResult
from qo.engines.replicated_log.catch_up import CatchUp
from qo.engines.replicated_log.checkpoint import CheckpointStore
from qo.engines.replicated_log.commits import LogCommits
from qo.engines.replicated_log.keys import shard_prefix
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.log_options import LogOptions
from qo.engines.replicated_log.record_store import LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.runner import Runner
from qo.engines.replicated_log.tail_proof import ProofStart, TailProof
from qo.engines.table_engine import Answer, TableEngine
from qo.model import ClaimRequest, Counts, Filter, Task
from qo.sqlite_tables.damage import BadRow, around_damage
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.table import SqliteTable

_CLOSE_TIMEOUT = 30.0
_FIRST_POLL_INTERVAL = 0.03  # seconds: a poll reads one small object, or finds none
_MAX_COUNT_AGE = 1.0  # seconds
_ALL = 2**31 - 1  # tasks


class LogShard(TableEngine):
    """The replica is loaded by the first call that needs it."""

    def __init__(
        self,
        bucket: Bucket,
        log: str,
        shard: int,
        options: LogOptions,
        clock: Clock,
        *,
        new_runner: Callable[[], Runner],
        proof: TailProof,
    ) -> None:
        super().__init__(clock)
        self._bucket, self._log, self._shard, self._options = bucket, log, shard, options
        self._place = shard_prefix(log, shard).removesuffix("/")
        self._proof = proof
        self._checkpoints = CheckpointStore(bucket, log, shard)
        self._records = RecordStore(bucket, log, shard, proof.reset)
        self._live = LiveReplica(self._load, new_runner)
        self._catch_up = CatchUp(self._records, self._live, proof, self._checkpoints, self._saw)
        self._commits = LogCommits(
            bucket,
            log,
            shard,
            clock,
            live=self._live,
            records=self._records,
            proof=proof,
            catch_up=self._catch_up,
            committed=self._saw,
        )
        self._poller = ClaimPoller(clock, PollBackoff(first=_FIRST_POLL_INTERVAL))
        self._damage_log = DamageLog()
        self._hand_backs = HandBacks(self.apply)
        self._background: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Nothing to do: the log was found, and the first call loads the replica."""

    def begin_empty(self, since: ProofStart) -> None:
        """Use an empty replica without a request: the log did not exist at `since`, and was created after that."""
        self._live.adopt(Replica(self._place))
        self._proof.proved(since)

    async def close(self) -> None:
        await self._commits.finish(_CLOSE_TIMEOUT)  # may leave tasks to hand back
        await self._hand_backs.finish(timeout=_CLOSE_TIMEOUT)
        await self._commits.finish(_CLOSE_TIMEOUT)
        await self._catch_up.finish()
        while self._background:
            await asyncio.wait(self._background)
        await self._live.close()

    async def _load(self) -> Replica:
        return Replica(self._place)

    def _saw(self, record: LogRecord) -> None:
        """Called with each record that the replica has applied or committed."""

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # --- the tables

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the commit claims nothing; one cancelled during it hands its tasks back."""

        def work(table: SqliteTable) -> list[Task]:
            return table.claim(request, self._clock())

        return await around_damage(lambda: self._commits.ask(work, self._hand_backs.start, request), self._set_aside)

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await around_damage(lambda: self._commits.ask(work, abandoned), self._set_aside)

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await around_damage(lambda: self._current(lambda replica: replica.read(work)), self._set_aside)

    async def _current(self, work: Callable[[Replica], Answer]) -> Answer:
        """Run work on a replica that has every record which existed when this was called."""
        await self._catch_up.run()
        while not self._live.is_open:  # a commit has found meanwhile that the replica is stale
            await self._catch_up.run()
        return await self._live.read(work)

    async def count(self) -> Counts:
        """May be a second old, so that a server which counts often makes few requests."""
        if self._live.is_open and self._proof.is_younger_than(_MAX_COUNT_AGE):
            return await self._live.read(lambda replica: replica.read(lambda reader: reader.count()))
        return await super().count()

    async def snapshot(self) -> Snapshot:
        def work(replica: Replica) -> Snapshot:
            position = replica.position
            return Snapshot(replica.read(lambda reader: reader.find(Filter(), _ALL, None, now)), position.seq)

        now = self._clock()
        return await around_damage(lambda: self._current(work), self._set_aside)

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._commits.ask(lambda table: table.set_aside(bad)))

    def _wake(self) -> None:
        self._poller.wake()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        def poll(replica: Replica) -> PollResult:
            return PollResult(replica.has_ready(request, self._clock()), replica.next_at())

        await self._poller.wait(lambda: self._current(poll), timeout)
