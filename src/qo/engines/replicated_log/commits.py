"""Group commit on one shard: each batch of calls becomes the next record of its log.

The transaction of a batch stays open while its record is created. Creating the record is the commit: only then does the
replica commit and do the callers get their answers. If another process has created the number first, the transaction is
rolled back, the records of the others are applied, and the calls run again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engines.combined_claims import CombinedClaims, combined
from qo.engines.commit_loop import CommitLoop, PendingCall
from qo.engines.contention import ContentionSignal
from qo.engines.replicated_log.catch_up import CatchUp, StaleReplica
from qo.engines.replicated_log.frame import FrameHeader
from qo.engines.replicated_log.keys import FrameKind, shard_prefix
from qo.engines.replicated_log.live_replica import LiveReplica
from qo.engines.replicated_log.record_store import START, LogPosition, LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica
from qo.engines.replicated_log.shard_inbox import IngestCall, ShardInbox
from qo.engines.replicated_log.tail_proof import TailProof
from qo.engines.replicated_log.writer_turns import WriterTurns
from qo.errors import Conflict, ObjectTooLarge, OutcomeUnknown, StorageError
from qo.ids import new_token
from qo.model import ClaimRequest
from qo.sqlite_tables.table import SqliteTable
from qo.sqlite_tables.writer import WriterCall

Answer = TypeVar("Answer")

log = logging.getLogger("qo.engines.replicated_log")
_GATHER_SHARE, _MAX_GATHER_TIME = 0.1, 0.01  # of the duration of the last write; seconds
_MIN_PAUSE = 0.001  # seconds after a write; calls that wait within this time are part of a stream
_MAX_REFUSALS = 32  # of submissions because of their size, until calls are served again
_MAX_BATCH_CALLS = 2_000
_MAX_RIVAL_AGE = 10.0  # seconds of a record whose writer is probably still writing
_WRITES_UNTIL_GROWTH = 8  # of the batches after the store refused one; a refused record is sent in vain
_MAX_BATCH_BYTES = 16 * 1024 * 1024  # of payloads and results; the limit of an object is far above


class LogCommits(CommitLoop):
    def __init__(
        self,
        bucket: Bucket,
        log_id: str,
        shard: int,
        clock: Clock,
        *,
        live: LiveReplica,
        records: RecordStore,
        proof: TailProof,
        catch_up: CatchUp,
        inbox: ShardInbox,
        committed: Callable[[LogRecord], object],
    ) -> None:
        """`committed` is called with each record that this process has created."""
        super().__init__(
            bucket,
            shard_prefix(log_id, shard).removesuffix("/"),
            max_batch_size=_MAX_BATCH_CALLS,
            max_batch_bytes=_MAX_BATCH_BYTES,
        )
        self._process = new_token()
        self._fairness = self._turns = WriterTurns(ContentionSignal(bucket, self._key), self._process)
        self._shard, self._clock = shard, clock
        self._live, self._records, self._proof, self._catch_up = live, records, proof, catch_up
        self._inbox, self._committed = inbox, committed
        self._prepared: LogRecord | None = None  # its transaction is open, and this holds the lock of the replica
        self._ingest: IngestCall | None = None  # in the same transaction
        self._refused: IngestCall | None = None  # in the last record, which was too large for the store
        self._writes_until_growth = _WRITES_UNTIL_GROWTH
        self._adds_submissions, self._refusals = True, 0  # with the calls of a batch, and while it is served
        # By the clock of the event loop: when another process won a number, or one of its records was read between
        # commits of this one.
        self.rivalled_at = float("-inf")
        self._last_write = 0.0, float("-inf")  # how long it took, and when it ended
        self._answered_at = START  # the position at which the last batch was run

    async def ask(
        self,
        work: Callable[[SqliteTable], Answer],
        abandoned: Callable[[Answer], None] | None = None,
        request: ClaimRequest | None = None,
        *,
        size: int = 0,
    ) -> Answer:
        """The answer of the call, when its record is stored. `size`: the bytes of its payloads and results."""
        answer: Answer = await self.submit(PendingCall(work, abandoned, request, size))
        return answer

    def saw(self, record: LogRecord) -> None:
        """Call with each record that the replica applies."""
        age = max(0.0, self._clock() - record.header.at)
        if record.header.writer != self._process and age < _MAX_RIVAL_AGE and self._last_write[1] > float("-inf"):
            self.rivalled_at = asyncio.get_running_loop().time()
        self._turns.saw(record.header.writer, record.header.last, age)

    async def finish(self, timeout: float) -> None:
        """Serve all waiting calls, within `timeout` seconds."""
        writer = self._writer
        if writer is not None:
            await asyncio.wait([writer], timeout=timeout)
            writer.cancel()
            await asyncio.wait([writer])
        await self._fairness.finish()

    # --- the content

    async def _wait_for_turn(self) -> None:
        """Let callers that have just received their answers join the waiting calls."""
        took, ended = self._last_write
        if asyncio.get_running_loop().time() - ended < _MIN_PAUSE:
            await asyncio.sleep(min(_MAX_GATHER_TIME, _GATHER_SHARE * took))

    async def _load(self) -> None:
        if not self._live.is_open:
            await self._catch_up.run()

    @property
    def _is_loaded(self) -> bool:
        return self._live.is_open and not self._live.is_behind

    async def _refresh(self) -> bool:
        await self._catch_up.run()
        if await self._turns.wait_after_conflict():
            await self._catch_up.run()
        return self._live.position != self._answered_at

    async def _run(self, batch: list[PendingCall]) -> bool:
        await self._live.lock.acquire()
        is_locked: bool = True
        try:
            while not self._live.is_open:  # a reader has found that it was stale
                self._live.lock.release()
                is_locked = False
                await self._catch_up.run()
                await self._live.lock.acquire()
                is_locked = True
            return await self._prepare(batch)
        finally:
            if is_locked and self._prepared is None:
                self._live.lock.release()

    async def _prepare(self, batch: list[PendingCall]) -> bool:
        now = self._clock()
        calls = combined(batch, now)
        ingest = None
        if self._adds_submissions or not batch:
            ingest = self._inbox.next_call(now, is_claiming=any(call.request is not None for call in batch))
        if ingest is not None:
            calls.insert(0, ingest)
        replica, position = self._live.replica, self._live.position
        try:
            patchset = await self._live.write(lambda replica: replica.prepare(calls))
        except BaseException:
            replica.roll_back()
            raise
        _distribute(calls)
        self._answered_at = position
        if patchset:
            self._prepared, self._ingest = self._record(replica, position, patchset, now), ingest
        elif ingest is not None:
            self._inbox.settle(ingest)
        return bool(patchset)

    def _record(self, replica: Replica, position: LogPosition, patchset: bytes, now: float) -> LogRecord:
        own_id, seq = new_token(), position.seq + 1
        header = FrameHeader(
            FrameKind.RECORD,
            self._shard,
            seq,
            seq,
            own_id,
            previous=position.id,
            last_id=own_id,
            at=now,
            writer=self._process,
            schema=replica.schema,
            schema_since=replica.schema_since,
            flags=replica.flags,
        )
        return LogRecord(header, patchset)

    async def _write(self) -> None:
        record = self._prepared
        if record is None:
            raise RuntimeError("no batch was run")
        start, began = self._proof.begin(), asyncio.get_running_loop().time()
        try:
            await self._append(record)
        except BaseException as error:
            self._refused = self._ingest if isinstance(error, ObjectTooLarge) else None
            self._forget()
            raise
        self._proof.proved(start)
        self._grow_batches()
        took = asyncio.get_running_loop().time() - began
        try:
            await self._live.write(lambda replica: replica.commit(LogPosition(record.header.last, record.header.id)))
        except StorageError as error:  # the record is in the log, so the calls have succeeded
            self._live.fall_behind()
            log.warning("%s: the replica could not commit; it will read the record: %s", self._key, error)
        else:
            self.saw(record)
            self._committed(record)
        finally:
            ingest, self._prepared, self._ingest = self._ingest, None, None
            self._live.lock.release()
            self._last_write = took, asyncio.get_running_loop().time()
        if ingest is not None:
            self._inbox.settle(ingest)

    async def _serve_batch(self, batch: list[PendingCall]) -> None:
        self._adds_submissions, self._refusals = True, 0
        await super()._serve_batch(batch)

    def _after_refusal(self, batch: list[PendingCall]) -> list[list[PendingCall]]:
        """The calls and the submissions of a record that was too large get separate records.

        An empty batch only adds submissions.
        The inbox gets smaller batches only after a record with nothing but submissions was refused.
        """
        refused, self._refused = self._refused, None
        if refused is not None and batch:
            self._adds_submissions = False
            return [[], batch]
        if refused is not None:
            self._inbox.refuse_size(refused)
            self._refusals += 1
            return [[]] if self._refusals < _MAX_REFUSALS and self._inbox.has_batch else []
        if len(batch) <= 1:
            return []
        sizes = [call.size for call in batch]
        self._max_batch_bytes = max(1, *sizes, min(self._max_batch_bytes, sum(sizes)) // 2)
        self._writes_until_growth = _WRITES_UNTIL_GROWTH
        middle = len(batch) // 2
        return [batch[:middle], batch[middle:]]

    def _grow_batches(self) -> None:
        """Call after a write: the next batches may be larger, if enough writes have succeeded since one was refused."""
        self._writes_until_growth -= 1
        if self._writes_until_growth <= 0:
            self._max_batch_bytes = min(2 * self._max_batch_bytes, _MAX_BATCH_BYTES)
            self._writes_until_growth = _WRITES_UNTIL_GROWTH

    async def _append(self, record: LogRecord) -> None:
        """Create the record, and make sure that its number was never used by a record that was deleted since.

        If it was, the created record is below the floor, and no process ever reads it.
        """
        seq, doubts, conflict = record.header.first, self._records.doubts, None
        try:
            await self._records.append(record)
        except Conflict as error:
            self.rivalled_at = asyncio.get_running_loop().time()
            if self._records.doubts == doubts:
                raise
            conflict = error
        is_in_doubt = self._records.doubts != doubts
        if is_in_doubt:
            self._proof.reset()  # regardless of the clocks: they may have stood still with the whole machine
        try:
            await self._catch_up.check_floor(seq)
        except StaleReplica:
            await self._drop_replica()
            if is_in_doubt:
                raise OutcomeUnknown(
                    f"{self._records.key(seq)} may have been written: records of that time have been deleted since"
                ) from None
            raise Conflict(f"{self._records.key(seq)} was used and deleted before") from None
        except StorageError as error:
            raise OutcomeUnknown(
                f"{self._records.key(seq)} may have been written, and the floor cannot be read: {error}"
            ) from error
        if conflict is not None:
            raise conflict

    async def _drop_replica(self) -> None:
        self._roll_back()
        self._proof.reset()
        await self._live.drop()

    def _forget(self) -> None:
        self._roll_back()
        self._live.fall_behind()

    def _roll_back(self) -> None:
        """Roll back the open transaction, if there is one. No thread uses its connection now."""
        if self._prepared is not None:
            self._prepared = self._ingest = None
            try:
                self._live.replica.roll_back()
            finally:
                self._live.lock.release()


def _distribute(calls: Sequence[WriterCall]) -> None:
    for call in calls:
        if isinstance(call, CombinedClaims):
            call.distribute()
