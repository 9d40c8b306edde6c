"""The submissions that wait in a shard: lists and reads them, and deletes them after they were added.

A number is never skipped because a listing lacks it: a store may omit an object that is stored while it lists. The
consumer then reads the object by its name. Only if it does not exist was it deleted, and the stream continues.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from qo.bucket import Blob, Bucket
from qo.clock import Clock, boot_clock, system_clock
from qo.engines.replicated_log.keys import FrameKind, parse_key, submission_key, submissions_prefix
from qo.engines.replicated_log.submission_batch import SubmissionBatch, SubmissionNumber, WaitingSubmission
from qo.engines.replicated_log.submissions import (
    MAX_PAYLOADS,
    MAX_STREAM_AGE,
    MAX_TASKS,
    Age,
    DamagedSubmission,
    decode_submission,
)
from qo.engines.requests import in_parallel, retry
from qo.errors import NewerFormat, StorageError

log = logging.getLogger("qo.engines.replicated_log")

MAX_OBJECTS = 32  # of one transaction
_MAX_LISTED = 1000  # objects of one scan
_MAX_GAP = 64  # numbers that are read by name if a listing lacks them
_MAX_READS = 3  # of a damaged object, until two responses are identical
_REFUSAL_TIME = 60.0  # seconds in which a process remembers that a record was too large


class SubmissionInbox:
    """The waiting submissions of a shard that a process has listed or read."""

    def __init__(
        self, bucket: Bucket, log: str, shard: int, *, elapsed: Clock = boot_clock, wall: Clock = system_clock
    ) -> None:
        self._bucket, self._log, self._shard = bucket, log, shard
        self._elapsed, self._wall = elapsed, wall
        self._waiting: dict[SubmissionNumber, WaitingSubmission | None] = {}  # None: not read yet
        self._gaps: dict[SubmissionNumber, int] = {}
        self._set_aside: set[SubmissionNumber] = set()
        self._left: dict[str, float] = {}  # producers whose objects this process cannot add, and until when
        self._max_objects, self._max_size = MAX_OBJECTS, MAX_PAYLOADS
        self._grows_at = float("-inf")  # when `_max_size` may grow
        self._too_large: set[SubmissionNumber] = set()  # that were logged
        self._after = ""  # where the next scan begins

    @property
    def is_empty(self) -> bool:
        """Whether no submission is known to wait."""
        return not self._waiting

    @property
    def numbers(self) -> set[SubmissionNumber]:
        """The submissions that are known to wait."""
        return set(self._waiting)

    @property
    def is_rewound(self) -> bool:
        """Whether the next scan lists from the beginning."""
        return not self._after

    def rewind(self) -> None:
        self._after = ""

    def notice(self, keys: Iterable[str]) -> None:
        """Take over names from a listing. Other names are ignored."""
        for key in keys:
            name = parse_key(key)
            if name is None or name.kind is not FrameKind.SUBMISSION or name.token is None:
                continue
            number = SubmissionNumber(name.token, name.first)
            if number not in self._set_aside and not self._is_left(number.producer):
                self._waiting.setdefault(number, None)

    async def scan(self) -> None:
        """List what waits. If it is much, the next scan continues where this one has ended."""
        found = await retry(self._listed)
        self._after = found[-1] if len(found) == _MAX_LISTED else ""
        self.notice(found)

    async def _listed(self) -> list[str]:
        found = list[str]()
        async for key in self._bucket.keys(submissions_prefix(self._log, self._shard), after=self._after):
            found.append(key)
            if len(found) == _MAX_LISTED:
                break
        return found

    async def read(self) -> None:
        """Read the objects of the next batch, and those that a listing lacks."""
        gaps, self._gaps = self._gaps, {}
        for due, known in gaps.items():
            await self._fill(due, known)
        unread = [number for number, found in self._next_batch() if found is None or found.is_outdated]
        for number, found in (await self._get(unread)).items():
            if found is None:  # another process has added and deleted it
                self._waiting.pop(number, None)
            elif not self._is_left(number.producer):
                self._waiting[number] = found

    def _next_batch(self) -> Iterator[tuple[SubmissionNumber, WaitingSubmission | None]]:
        """As many of the submissions that were read as one transaction may add."""
        tasks = size = 0
        for place, (number, found) in enumerate(self._waiting.items()):
            if found is not None:
                tasks, size = tasks + len(found.tasks), size + found.size
            if place and (tasks > MAX_TASKS or size > self._max_size or place == self._max_objects):
                return
            yield number, found

    async def _fill(self, due: SubmissionNumber, known: int) -> None:
        """Read the numbers before `known`, which no listing has shown, and put them first."""
        numbers = [SubmissionNumber(due.producer, n) for n in range(due.n, min(known, due.n + _MAX_GAP))]
        age = Age(self._elapsed, self._wall)
        found = await self._get(numbers)
        if self._is_left(due.producer):
            return
        numbers = [*found]
        filled = dict[SubmissionNumber, WaitingSubmission | None]()
        following = numbers[-1].n + 1
        if following < known and not any(found.values()):
            listed = await retry(lambda: self._first_after(numbers[-1]))
            following = known if listed is None else min(known, listed)
        for number in reversed(numbers):
            if found[number] is not None:
                filled[number], following = found[number], number.n
            elif number == due or found[numbers[number.n - due.n - 1]] is not None:  # a run of missing numbers
                problem = f"{self._key(number)} was deleted before its tasks were added"
                filled[number] = WaitingSubmission(following, age, problem=problem, exists=False)
                following = number.n
        first = dict(sorted(filled.items()))
        self._waiting = first | self._waiting | first

    async def _first_after(self, number: SubmissionNumber) -> int | None:
        """The next number of the producer that exists: a listing shows what was stored before it began."""
        prefix = f"{submissions_prefix(self._log, self._shard)}{number.producer}/"
        async for key in self._bucket.keys(prefix, after=self._key(number)):
            if (name := parse_key(key)) is not None:
                return name.first
        return None

    async def _get(self, numbers: Sequence[SubmissionNumber]) -> dict[SubmissionNumber, WaitingSubmission | None]:
        """Read the objects, the first of them at least, until they hold as much as a transaction may add.

        A small object may decompress to a large one, so later objects are omitted and read later. None: there is no
        such object.
        """
        age = Age(self._elapsed, self._wall)
        blobs = await in_parallel(self._fetch, numbers)
        read, size = dict[SubmissionNumber, WaitingSubmission | None](), 0
        for number, blob in zip(numbers, blobs, strict=True):
            if size > MAX_PAYLOADS:
                break
            read[number] = found = await self._decoded(number, blob, age)
            size += 0 if found is None else found.size
        return read

    async def _fetch(self, number: SubmissionNumber) -> Blob | None:
        return await retry(lambda: self._bucket.get(self._key(number)))

    async def _decoded(self, number: SubmissionNumber, blob: Blob | None, age: Age) -> WaitingSubmission | None:
        key, former, problem = self._key(number), b"", ""
        for _ in range(_MAX_READS):
            if blob is None:
                return None
            try:
                header, tasks = decode_submission(key, blob.data)
                # A producer with a wrong clock, or a forged time, must not overtake all others.
                at = max(header.at, blob.written_at - MAX_STREAM_AGE)
                return WaitingSubmission(number.n + 1, age, tasks, at, header.raw_bytes)
            except NewerFormat as error:
                log.error("the submissions of %s wait for a newer qo: %s", number.producer, error)  # noqa: TRY400
                self._leave(number.producer, float("inf"))
                return None
            except DamagedSubmission as error:
                problem = str(error)
            if blob.data == former:
                break
            former, blob = blob.data, await self._fetch(number)  # the response may be damaged, and not the object
        return WaitingSubmission(number.n + 1, age, problem=problem)

    def _is_left(self, producer: str) -> bool:
        if self._elapsed() < self._left.get(producer, float("-inf")):
            return True
        self._left.pop(producer, None)
        return False

    def _leave(self, producer: str, until: float) -> None:
        self._left[producer] = until
        self._waiting = {number: found for number, found in self._waiting.items() if number.producer != producer}

    def batch(self) -> SubmissionBatch | None:
        """The next submissions that were read, as the work of one transaction."""
        chosen = {number: found for number, found in self._next_batch() if found is not None}
        return SubmissionBatch(dict(sorted(chosen.items()))) if chosen else None

    async def settle(self, batch: SubmissionBatch) -> None:
        """Call when the transaction is committed, or has changed nothing: deletes the objects that were added."""
        await self.delete(self.settled(batch))

    def settled(self, batch: SubmissionBatch) -> list[str]:
        """As `settle`, but the caller deletes the objects: returns their keys. The next batch has none of them."""
        self._max_objects = MAX_OBJECTS
        if self._max_size < MAX_PAYLOADS and self._elapsed() >= self._grows_at:
            self._max_size, self._grows_at = min(MAX_PAYLOADS, 2 * self._max_size), self._elapsed() + _REFUSAL_TIME
        self._set_aside.update(batch.kept)
        self._gaps |= batch.gaps
        for number, found in batch.waiting.items():
            if not found.exists or number in self._set_aside:
                self._waiting.pop(number, None)
        for number in batch.kept:
            log.error("%s cannot be added and is set aside: %s", self._key(number), batch.waiting[number].problem)
        for number in batch.consumed:
            self._waiting.pop(number, None)
            self._too_large.discard(number)
        # The row of an object that was added long ago may be forgotten soon: the next batch that has it refreshes it.
        return [self._key(number) for number in batch.consumed if not batch.waiting[number].is_outdated]

    async def delete(self, keys: Sequence[str]) -> None:
        with suppress(StorageError):  # what is left is listed again, and deleted then
            await in_parallel(self._bucket.delete, keys)

    def refuse(self, batch: SubmissionBatch, error: BaseException) -> None:
        """Call when the work of the batch failed: finds the object that cannot be added, and sets it aside."""
        if len(batch.waiting) > 1:
            self._max_objects = 1
            return
        for number, found in batch.waiting.items():
            self._waiting[number] = found._replace(problem=f"{self._key(number)} cannot be added: {error}")

    def postpone(self, batch: SubmissionBatch, error: BaseException) -> None:
        """Call when a segment cannot be read that may contain tasks of the batch: finds the object that needs it.

        This object waits with its successors, and is tried again after a minute: the segment may be restored.
        """
        if len(batch.waiting) > 1:
            self._max_objects = 1
            return
        for number in batch.waiting:
            log.error("%s waits: %s", self._key(number), error)
            self._leave(number.producer, self._elapsed() + _REFUSAL_TIME)

    def refuse_size(self, batch: SubmissionBatch) -> None:
        """Call when the store refused a record of only this batch because of its size.

        The next batches are smaller for a minute. An object that is too large alone waits with its successors, and is
        tried again after a minute. Another process may have another way to the store.
        """
        self._grows_at = self._elapsed() + _REFUSAL_TIME
        if len(batch.waiting) > 1:
            total = sum(found.size for found in batch.waiting.values())
            self._max_size = max(1, min(self._max_size, total) // 2)
            return
        for number in batch.waiting:
            if number not in self._too_large:
                log.error("%s waits: the store refuses a record with its tasks because of its size", self._key(number))
                self._too_large.add(number)
            self._leave(number.producer, self._grows_at)

    async def without_objects(self, producers: Sequence[str]) -> list[str]:
        """The producers that have no object in the shard."""

        async def is_empty(producer: str) -> bool:
            return await retry(lambda: self._is_empty(f"{submissions_prefix(self._log, self._shard)}{producer}/"))

        empty = await in_parallel(is_empty, producers)
        return [producer for producer, is_idle in zip(producers, empty, strict=True) if is_idle]

    async def _is_empty(self, prefix: str) -> bool:
        async for _ in self._bucket.keys(prefix):
            return False
        return True

    def _key(self, number: SubmissionNumber) -> str:
        return submission_key(self._log, self._shard, number.producer, number.n)
