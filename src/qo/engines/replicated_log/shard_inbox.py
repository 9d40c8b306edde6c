"""When a process lists the submissions that wait in a shard, and how they get into its commits."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engines.replicated_log.cold_store import DamagedSegment
from qo.engines.replicated_log.keys import FrameKind, parse_key, record_key, shard_prefix, submission_key
from qo.engines.replicated_log.submission_batch import SubmissionBatch, SubmissionNumber
from qo.engines.replicated_log.submission_inbox import SubmissionInbox
from qo.engines.requests import retry
from qo.errors import Refused, StorageError
from qo.sqlite_tables.rows import BadRow, DamageFound
from qo.sqlite_tables.segments import SegmentNeeded
from qo.sqlite_tables.table import SqliteTable

log = logging.getLogger("qo.engines.replicated_log")

_ACTIVE_TIME = 10.0  # seconds after a submission was found in which its producer is expected to submit more
_ACTIVE_INTERVAL, _QUIET_INTERVAL = 0.1, 1.0  # seconds between listings of a process that waits for tasks
_QUIET_SHARE = 0.1  # of the time since the last submission was found, between these two
_BUSY_INTERVAL = 1.0  # seconds between listings of a busy one; a listing costs as much as twelve reads
_QUIET_BUSY_INTERVAL = 3.0  # the same, if it has found no submission lately
_MAX_STREAMS, _MAX_WIDTH = 8, 8  # producers whose next submissions are read without a listing, and how many of each
_MAX_LISTED = 1000  # keys
_MAX_IDLE_ROUNDS = 3  # of `consume_all` without progress
_MAX_READER_COMMITS = 8  # of one reader, for submissions that it finds
_REFUSAL_INTERVAL = 60.0  # seconds after which a reader without permission tries again
_MAX_READER_LISTINGS = 5  # listings that readers may make in a burst; one more each second


class _ActiveStream(NamedTuple):
    """The submissions that are expected of a producer."""

    next: int
    width: int  # how many are read concurrently
    active_at: float


class IngestCall:
    """The work of a transaction that adds the waiting submissions. It runs before the other calls."""

    def __init__(self, batch: SubmissionBatch, now: float) -> None:
        self.batch, self._now = batch, now
        self.answer: None = None
        self.error: BaseException | None = None

    def work(self, table: SqliteTable) -> None:
        self.batch.ingest(table, self._now)


class ShardInbox:
    def __init__(
        self,
        bucket: Bucket,
        log_id: str,
        shard: int,
        *,
        last_record: Callable[[], int],
        set_aside: Callable[[list[BadRow]], Awaitable[object]],
        thaw: Callable[[Sequence[int]], Awaitable[object]],
        elapsed: Clock,
        wall: Clock,
    ) -> None:
        """`last_record` is the position of the replica. `set_aside` removes damaged rows from the tables.

        `thaw` puts the tasks of segments back into the tables.
        """
        self._bucket, self._log, self._shard = bucket, log_id, shard
        self._last_record, self._set_aside, self._thaw = last_record, set_aside, thaw
        self._inbox = SubmissionInbox(bucket, log_id, shard, elapsed=elapsed, wall=wall)
        self._listed_at: float | None = None
        self._found_at: float | None = None
        self._streams: dict[str, _ActiveStream] = {}  # by producer
        self._moves = 0  # submissions that were added or set aside
        self._background: set[asyncio.Task[None]] = set()
        self._scanning: asyncio.Task[None] | None = None
        self._listings, self._refilled_at = 0.0, float("-inf")  # that readers may make now
        self._looked_at = float("-inf")
        self._refused_until = float("-inf")  # readers add no submissions

    @property
    def has_batch(self) -> bool:
        """Whether the next commit adds submissions."""
        return self._inbox.batch() is not None

    @property
    def is_due(self) -> bool:
        """Whether a process that waits for tasks should list."""
        now = asyncio.get_running_loop().time()
        if self._listed_at is None or self._found_at is None:
            self._found_at = now  # a new process expects some
            return True
        interval = min(_QUIET_INTERVAL, max(_ACTIVE_INTERVAL, _QUIET_SHARE * (now - self._found_at)))
        return now - self._listed_at >= interval

    def expect(self) -> None:
        """Other processes are active, so submissions may follow."""
        self._found_at = asyncio.get_running_loop().time()

    @property
    def is_late(self) -> bool:
        """Whether the last listing is outdated."""
        return asyncio.get_running_loop().time() - self._looked_at >= _BUSY_INTERVAL

    async def scan(self) -> bool:
        """List what follows the last record, and read the submissions. Returns whether there are new records."""
        self._listed_at = self._looked_at = asyncio.get_running_loop().time()
        keys = await self._notice_listed()
        await self._read()
        return _has_records(keys)

    async def _notice_listed(self) -> list[str]:
        """List what follows the last record: further records, and submissions."""
        keys = await retry(self._list)
        self._inbox.notice(keys)
        if len(keys) >= _MAX_LISTED:
            await self._inbox.scan()  # continues where its last listing has ended
        return keys

    async def read_streams(self) -> None:
        """Read the next submission of each active producer, which is quicker than a listing."""
        self._forget_streams(asyncio.get_running_loop().time())
        if 0 < len(self._streams) <= _MAX_STREAMS:
            self._inbox.notice(
                submission_key(self._log, self._shard, producer, n)
                for producer, stream in self._streams.items()
                for n in range(stream.next, stream.next + stream.width)
            )
            await self._inbox.read()

    async def _list(self) -> list[str]:
        prefix, after = shard_prefix(self._log, self._shard), record_key(self._log, self._shard, self._last_record())
        found: list[str] = []
        async for key in self._bucket.keys(prefix, after=after):
            found.append(key)
            if len(found) >= _MAX_LISTED:
                break
        return found

    async def _read(self) -> None:
        if not self._inbox.is_empty:
            self._found_at = asyncio.get_running_loop().time()
            await self._inbox.read()

    # --- in a commit

    def next_call(self, now: float, *, is_claiming: bool) -> IngestCall | None:
        """The submissions for the next commit. A worker that is busy, and never waits, lists from time to time."""
        instant = asyncio.get_running_loop().time()
        if self._listed_at is None:
            self._listed_at = instant
        if is_claiming and self._scanning is None:
            is_quiet = self._found_at is None or instant - self._found_at >= _ACTIVE_TIME
            if instant - self._listed_at >= (_QUIET_BUSY_INTERVAL if is_quiet else _BUSY_INTERVAL):
                self._scanning = self._start(self._look(self.scan))
            elif self._streams:
                self._scanning = self._start(self._look(self.read_streams))
        batch = self._inbox.batch()
        return None if batch is None else IngestCall(batch, now)

    async def _look(self, how: Callable[[], Awaitable[object]]) -> None:
        try:
            with suppress(StorageError):  # the next commit tries again
                await how()
        finally:
            self._scanning = None

    def settle(self, call: IngestCall) -> None:
        """Call when the transaction of the call is committed, or has changed nothing."""
        error = call.error
        if error is None:
            self._moves += call.batch.moves
            self._expect_more(call.batch.consumed)
            self._start(self._clean_up(self._inbox.settled(call.batch)))
        elif isinstance(error, DamageFound):  # the next commit tries again without the damaged rows
            self._start(self._set_aside_rows(error.rows))
        elif isinstance(error, SegmentNeeded):  # a submission repeats one whose tasks are in a segment
            self._start(self._thaw_segments(error.numbers, call.batch))
        elif isinstance(error, StorageError):  # of the whole transaction
            log.warning("submissions could not be added yet; trying again: %s", error)
        else:
            self._inbox.refuse(call.batch, error)

    def refuse_size(self, call: IngestCall) -> None:
        """Call when the store refused a record of only this call because of its size."""
        self._inbox.refuse_size(call.batch)

    def _expect_more(self, consumed: Sequence[SubmissionNumber]) -> None:
        now = asyncio.get_running_loop().time()
        self._forget_streams(now)
        for producer, number in Counter(name.producer for name in consumed).items():
            following = max(name.n for name in consumed if name.producer == producer) + 1
            self._streams[producer] = _ActiveStream(following, min(number + 1, _MAX_WIDTH), now)

    def _forget_streams(self, now: float) -> None:
        self._streams = {
            name: stream for name, stream in self._streams.items() if now - stream.active_at < _ACTIVE_TIME
        }

    async def _clean_up(self, keys: Sequence[str]) -> None:
        """Delete what was added, and read what follows."""
        await asyncio.gather(self._inbox.delete(keys), self._read_quietly())

    async def _read_quietly(self) -> None:
        with suppress(StorageError):  # the next scan reads them
            await self._read()

    async def _set_aside_rows(self, rows: list[BadRow]) -> None:
        with suppress(StorageError):
            await self._set_aside(rows)

    async def _thaw_segments(self, numbers: Sequence[int], batch: SubmissionBatch) -> None:
        try:
            await self._thaw(numbers)
        except DamagedSegment as error:
            self._inbox.postpone(batch, error)
        except StorageError as error:
            log.warning("submissions could not be added yet; trying again: %s", error)

    # --- completely

    async def consume_all(self, commit: Callable[[], Awaitable[object]], keys: Iterable[str] = ()) -> int:
        """Add every submission that is waiting now; those in `keys` are known to be. Returns the number of commits.

        Later submissions may wait longer; otherwise this would not end while producers keep submitting.
        """
        self._inbox.notice(keys)
        self._inbox.rewind()
        commits = 0
        while True:
            await self._inbox.scan()
            is_last = self._inbox.is_rewound
            commits += await self._consume(self._inbox.numbers, commit)
            if is_last:
                return commits

    async def look(self, commit: Callable[[], Awaitable[object]], *, with_records: bool) -> bool | None:
        """List for a reader, and add what waits. Frequent readers may list once a second: a listing is expensive.

        Returns whether the listing shows submissions, or records after the last one; None if it is not known.
        """
        now = asyncio.get_running_loop().time()
        self._listings, self._refilled_at = min(_MAX_READER_LISTINGS, self._listings + now - self._refilled_at), now
        if self._listings < 1 or now < self._refused_until:
            return None
        self._listings, self._looked_at = self._listings - 1, now
        has_news: bool | None = None
        try:
            if with_records:
                has_news = bool(await self._notice_listed())
            else:
                await self._inbox.scan()
        except StorageError as error:
            self._report(error)
        await self.consume_some(commit)
        return has_news

    async def look_late(self) -> None:
        """List for a worker that found no task, if the last listing is a while ago."""
        if self.is_late and asyncio.get_running_loop().time() >= self._refused_until:
            try:
                await self.scan()
            except StorageError as error:
                self._looked_at = float("-inf")
                if type(error) is not Refused:  # a worker must not stop because it could not list
                    raise
                self._report(error)

    async def consume_some(self, commit: Callable[[], Awaitable[object]]) -> int:
        """Add submissions that are known to wait, if this process can, with few commits. Returns their number."""
        try:
            return await self._consume(self._inbox.numbers, commit, _MAX_READER_COMMITS)
        except StorageError as error:
            self._report(error)
        return 0

    def _report(self, error: StorageError) -> None:
        """Log why submissions are missing. A process without permission need not add them, and rarely tries."""
        if type(error) is not Refused:  # its subclasses mean that something is damaged, too new or too large
            log.warning("waiting submissions were not added, so they are not shown: %s", error)
            return
        if self._refused_until == float("-inf"):
            log.warning(
                "this process may not add waiting submissions, so it shows only those that others add: %s", error
            )
        self._refused_until = asyncio.get_running_loop().time() + _REFUSAL_INTERVAL

    async def _consume(
        self, due: set[SubmissionNumber], commit: Callable[[], Awaitable[object]], max_commits: int = sys.maxsize
    ) -> int:
        commits = idle_rounds = 0
        while due and idle_rounds < _MAX_IDLE_ROUNDS and commits < max_commits:
            before = len(due), self._moves
            await self._inbox.read()
            if self.has_batch:
                await commit()
                commits += 1
                await self._wait_once()  # what was added is deleted then, and what follows is read
            due &= self._inbox.numbers  # an object that was added and not deleted may be found again
            idle_rounds = 0 if (len(due), self._moves) != before else idle_rounds + 1
        return commits

    async def idle_producers(self, old: Sequence[str]) -> list[str]:
        """The producers that have no objects left."""
        return await self._inbox.without_objects(old)

    async def finish(self) -> None:
        """Wait until no work is left in the background. Other calls must have ended, because they start more."""
        while self._background - {asyncio.current_task()}:
            await self._wait_once()

    async def _wait_once(self) -> None:
        """Wait for the work that is in the background now. A busy process always has some."""
        if running := self._background - {asyncio.current_task()}:
            await asyncio.wait(running)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _has_records(keys: Iterable[str]) -> bool:
    return any(name is not None and name.kind is FrameKind.RECORD for name in map(parse_key, keys))
