"""Tasks of producers that hold no replica: a producer writes a stream of numbered objects, and any writer adds them.

A producer's number n+1 is sent only when n is stored, so a consumer can distinguish a missing number from the end. The
row of a producer in the table `submissions` holds the next number to add. It changes in the transaction that adds the
tasks, so each object is added once, however often it is listed.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

import msgspec

from qo.bucket import NEW, Bucket
from qo.buckets.own_writes import put_document
from qo.clock import Clock, boot_clock, system_clock
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, decode_frame, encode_frame
from qo.engines.replicated_log.keys import NO_ID, FrameKind, submission_key
from qo.engines.replicated_log.record_batches import write_in_batches
from qo.errors import BadBatch, Conflict, InvalidTask, Refused, StorageError
from qo.ids import new_token
from qo.model import UNREADABLE, Added, NewTask, check_distinct, check_new, check_size
from qo.model.task import LATEST

MAX_STREAM_AGE = 1800.0  # seconds without a batch after which a producer begins a new stream
MAX_TASKS = 4000  # of one object
MAX_PAYLOADS = 8 * 1024 * 1024  # bytes of payloads and needs in one object
_MAX_SIZE = 4 * MAX_PAYLOADS  # bytes of one object before compression: the rest of a task is small
_MAX_CONFLICTS = 3
_MAX_REMEMBERED_IDS = 10_000
_decoder = msgspec.msgpack.Decoder(list[NewTask])


class DamagedSubmission(Refused):
    """An object of a producer cannot be added. It is set aside, and the rest of the stream is added."""


def encode_submission(producer: str, shard: int, n: int, tasks: Sequence[NewTask], *, at: float, writer: str) -> bytes:
    header = FrameHeader(
        FrameKind.SUBMISSION, shard, n, len(tasks), new_token(), previous=producer, at=at, writer=writer
    )
    return encode_frame(header, msgspec.msgpack.encode(tasks))


def decode_submission(key: str, data: bytes) -> tuple[FrameHeader, list[NewTask]]:
    """The header and the tasks. Raises DamagedSubmission, or NewerFormat.

    Everything is checked, because a producer may be less trusted than the processes that run its tasks.
    """
    try:
        header, body = decode_frame(key, data, max_body=_MAX_SIZE)
        if header.last > MAX_TASKS:
            raise ValueError(f"{header.last} tasks are too many for one object")
        tasks = _decoder.decode(body)
        if not 0 <= header.at < LATEST:
            raise ValueError(f"{header.at!r} is not a valid time")
        if len(tasks) != header.last:
            raise ValueError(f"it has {len(tasks)} tasks, but its header states {header.last}")
        for task in tasks:
            check_new(task, payload_limit=MAX_PAYLOADS)
            if task.idempotency_key is not None:
                raise ValueError("a task with an idempotency key needs an answer, which a submission does not get")
        check_distinct(task.id for task in tasks)
    except DamagedFrame as error:
        raise DamagedSubmission(str(error)) from error
    except (InvalidTask, BadBatch, *UNREADABLE) as error:
        raise DamagedSubmission(f"{key} is damaged: {error}") from error
    return header, tasks


class Age:
    """How long ago something happened.

    Two clocks measure it: each may stand still or be set while a machine is suspended.
    """

    def __init__(self, elapsed: Clock, wall: Clock) -> None:
        self._elapsed, self._wall = elapsed, wall
        self.restart()

    def restart(self) -> None:
        self._since = self._elapsed(), self._wall()

    def is_over(self, seconds: float) -> bool:
        boot, wall = self._since
        return max(abs(self._elapsed() - boot), abs(self._wall() - wall)) > seconds


class SubmissionStream:
    """The objects of one producer in one shard. Producers never wait for each other, and read nothing."""

    def __init__(
        self,
        bucket: Bucket,
        log: str,
        shard: int,
        *,
        writer: str = NO_ID,
        elapsed: Clock = boot_clock,
        wall: Clock = system_clock,
    ) -> None:
        self._bucket, self._log, self._shard, self._writer = bucket, log, shard, writer
        self._age = Age(elapsed, wall)
        self._producer, self._next = new_token(), 0
        self._lock = asyncio.Lock()
        self._submitted = OrderedDict[str, None]()  # the ids of the last tasks
        self.written: set[str] = set()  # keys of stored objects; the owner removes those that it knows to be consumed

    async def submit(self, tasks: Sequence[NewTask]) -> list[Added]:
        """Store the tasks in few objects, each of which is one write. Raises OutcomeUnknown if some may be stored.

        A task that this stream has stored before is not stored again.
        """
        check_distinct(task.id for task in tasks)
        for task in tasks:
            check_size("payload", task.payload, MAX_PAYLOADS)
        async with self._lock:
            new = [task for task in tasks if task.id not in self._submitted]

            async def write(places: Sequence[int]) -> Sequence[None]:
                await self._write([new[place] for place in places])
                return [None] * len(places)

            await write_in_batches([_size(task) for task in new], write)
        for _ in range(len(self._submitted) - _MAX_REMEMBERED_IDS):
            self._submitted.popitem(last=False)
        added = {task.id for task in new}
        return [Added(task.id, new=task.id in added) for task in tasks]

    async def _write(self, tasks: Sequence[NewTask]) -> None:
        for attempt in range(_MAX_CONFLICTS):
            if self._age.is_over(MAX_STREAM_AGE):
                self._begin()
            try:
                await self._put(tasks)
            except Conflict:  # a foreign object has this name
                self._begin()
                if attempt == _MAX_CONFLICTS - 1:
                    raise
            except BaseException:  # cancelled, or the outcome is unknown: the number may be used, now or later
                self._begin()
                raise
            else:
                self._submitted.update((task.id, None) for task in tasks)
                return

    async def _put(self, tasks: Sequence[NewTask]) -> None:
        self._age.restart()
        key = submission_key(self._log, self._shard, self._producer, self._next)
        data = encode_submission(
            self._producer, self._shard, self._next, tasks, at=self._bucket.now(), writer=self._writer
        )
        try:
            await put_document(
                _ExpiringBucket(self._bucket, self._age),
                key,
                data,
                expected=NEW,
                is_ours=lambda stored: _recognise(key, stored),
            )
        except _Expired as error:
            raise StorageError(str(error)) from error
        self._next += 1
        self.written.add(key)

    def _begin(self) -> None:
        self._producer, self._next = new_token(), 0


def _recognise(key: str, stored: bytes) -> bool | None:
    """False for a readable object that is not this write; None: it may be this write, with a damaged response."""
    try:
        decode_frame(key, stored, max_body=_MAX_SIZE)
    except Refused:
        return None
    return False


def _size(task: NewTask) -> int:
    return len(task.payload) + sum(map(len, task.needs))


class _Expired(Refused):
    """The first attempt of a write is too long ago to repeat it."""


class _ExpiringBucket:
    """Repeats no write after MAX_STREAM_AGE: its object may be added and deleted by then, and its row removed."""

    def __init__(self, bucket: Bucket, age: Age) -> None:
        self._bucket, self._age = bucket, age
        self.get, self.delete, self.versions, self.now = bucket.get, bucket.delete, bucket.versions, bucket.now

    async def put(self, key: str, data: bytes, *, expected: str) -> str:
        if self._age.is_over(MAX_STREAM_AGE):
            raise _Expired(f"{key} could not be written for {MAX_STREAM_AGE:g} seconds")
        return await self._bucket.put(key, data, expected=expected)

    def keys(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._bucket.keys(prefix, after=after)
