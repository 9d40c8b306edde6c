"""Loads a replica: an image, then merged records. The caller reads the records after them as any other replica does.

Objects may disappear while they are read, because another process has published a newer image and collected the
garbage. After a missing object, everything is therefore planned again from the checkpoint.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress

from qo.bucket import Bucket
from qo.clock import Clock, boot_clock
from qo.engines.replicated_log.checkpoint import CheckpointStore, LogCheckpoint, LogImage
from qo.engines.replicated_log.frame import DamagedFrame
from qo.engines.replicated_log.images import DamagedImage, ImageParts, cancel_all
from qo.engines.replicated_log.log_damage import LogDamageNotes
from qo.engines.replicated_log.merged_records import MergedRange, MergedRecords, chosen
from qo.engines.replicated_log.record_store import LogPosition, LogRecord
from qo.engines.replicated_log.replica import Replica, UnappliableRecord
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.engines.replicated_log.runner import Runner
from qo.errors import NewerFormat, Refused, StorageError
from qo.reports import show

log = logging.getLogger("qo.engines.replicated_log")

_MAX_PLANS = 3
_MAX_READS_AHEAD = 4
_QUIET_TIME = 1.0  # seconds until the progress is shown
_OPERATION = "loading the queue"
_ADVICE = (
    "restore an older version of this object, or keep one of the running workers alive: it writes a new image at its"
    " next repair"
)


class DamagedLog(Refused):
    """No image and no sequence of records leads to the current state."""


class _Outdated(Exception):
    """A planned object does not exist."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _ignore(_: LogRecord) -> None:
    return


async def load_replica(
    bucket: Bucket,
    log_id: str,
    shard: int,
    *,
    runner: Runner,
    saw: Callable[[LogRecord], object] = _ignore,
    first_schema: int | None = None,
) -> Replica:
    """A replica at the newest position that images and merged records lead to. It is private to the caller.

    `first_schema` is that of the tables before the first record; None: as in a log that this build creates.
    `saw` is called with each merged record that was applied, for `LogCompactor.saw`. The caller must read the records
    that follow, and check the floor after the last one: this function proves nothing about the end of the log.

    Raises DamagedLog with the names of the damaged objects, DamagedCheckpoint, and NewerFormat.
    """
    return await _Loader(bucket, log_id, shard, runner, saw, first_schema=first_schema).load()


class _Loader:
    def __init__(
        self,
        bucket: Bucket,
        log_id: str,
        shard: int,
        runner: Runner,
        saw: Callable[[LogRecord], object],
        *,
        first_schema: int | None,
    ) -> None:
        self._first_schema = first_schema
        self._place = f"log/{log_id}/{shard:02x}"
        self._run, self._saw = runner, saw
        self._checkpoints = CheckpointStore(bucket, log_id, shard)
        self._images = ImageParts(bucket, log_id, shard, runner)
        self._merged = MergedRecords(bucket, log_id, shard, runner)
        self._damage = LogDamageNotes(bucket, shard)
        self._progress = _Progress()

    async def load(self) -> Replica:
        for _ in range(_MAX_PLANS):
            checkpoint = await self._checkpoints.read()
            try:
                return await self._load(checkpoint)
            except _Outdated as error:
                missing = error.key
        problem = f"{missing} is missing or damaged, and the records that it replaced were deleted"
        await self._report(missing, problem)
        raise DamagedLog(f"{problem}; {_ADVICE}")

    async def _load(self, checkpoint: LogCheckpoint) -> Replica:
        damaged: list[DamagedImage] = []
        for image in checkpoint.images:
            try:
                replica = await self._load_image(image)
            except DamagedImage as error:
                if error.is_missing and await self._checkpoints.read() != checkpoint:
                    raise _Outdated(error.key) from error
                damaged.append(error)
                await self._report(error.key, error)
            else:
                return await self._extended(replica, checkpoint)
        if checkpoint.floor > 1:
            raise DamagedLog(f"{'; '.join(map(str, damaged)) or 'the checkpoint names no image'}; {_ADVICE}")
        # No record was ever deleted, so the records lead from the beginning to the current state.
        return await self._extended(
            await self._run(lambda: Replica(self._place, schema=self._first_schema)), checkpoint
        )

    async def _report(self, key: str, problem: object) -> None:
        """Request a new image from a process whose replica does not need the object."""
        log.error("%s", problem)
        with suppress(StorageError):  # this process may have no right to write
            await self._damage.report(key, problem)

    async def _load_image(self, image: LogImage) -> Replica:
        file = await self._run(lambda: ReplicaFile.create(image.raw_bytes))
        try:
            self._progress.begin(image.bytes)
            await self._images.read(image, file.path, self._progress.advance)
            return await self._open(image, file)
        except BaseException:
            await self._run(file.remove)
            raise
        finally:
            self._progress.end()

    async def _open(self, image: LogImage, file: ReplicaFile) -> Replica:
        try:
            return await self._run(lambda: Replica(self._place, file, LogPosition(image.seq, image.id)))
        except NewerFormat:
            raise
        except StorageError as error:
            raise DamagedImage(self._images.key(image, 0), error) from error

    async def _extended(self, replica: Replica, checkpoint: LogCheckpoint) -> Replica:
        try:
            await self._apply_merged(replica, checkpoint)
        except BaseException:
            await self._run(replica.close)
            raise
        return replica

    async def _apply_merged(self, replica: Replica, checkpoint: LogCheckpoint) -> None:
        """Apply merged records as far as possible. Those that cannot be used are replaced by smaller ones."""
        ranges, unusable = set(await self._merged.ranges(replica.position.seq)), None
        while path := chosen(replica.position.seq, ranges):
            unusable = await self._follow(replica, path)
            if unusable is None:
                break
            ranges.remove(unusable)
        first = replica.position.seq + 1
        if first < checkpoint.floor:  # otherwise the caller reads the records
            missing = MergedRange(first, checkpoint.floor - 1)
            if unusable is not None and unusable.first == first:
                missing = unusable
            raise _Outdated(self._merged.key(missing))

    async def _follow(self, replica: Replica, path: Sequence[MergedRange]) -> MergedRange | None:
        """Apply these merged records in order. Returns the first one that is missing, damaged or does not match."""
        async with aclosing(self._read_ahead(path)) as blocks:
            async for merged, block in blocks:
                if block is None or not await self._applies(replica, block):
                    return merged
        return None

    async def _applies(self, replica: Replica, block: LogRecord) -> bool:
        try:
            await self._apply(replica, block)
        except UnappliableRecord as error:
            log.warning("%s; reading smaller ones", error)
            return False
        return True

    async def _apply(self, replica: Replica, record: LogRecord) -> None:
        await self._run(lambda: replica.apply(record))
        self._saw(record)

    async def _read_ahead(self, path: Sequence[MergedRange]) -> AsyncGenerator[tuple[MergedRange, LogRecord | None]]:
        """The merged records in order; None for one that is missing or damaged."""
        reads: deque[asyncio.Task[LogRecord | None]] = deque()
        try:
            for number in range(len(path) + _MAX_READS_AHEAD):
                if number < len(path):
                    reads.append(asyncio.create_task(self._get(path[number])))
                if number >= _MAX_READS_AHEAD:
                    yield path[number - _MAX_READS_AHEAD], await reads.popleft()
        finally:
            await cancel_all(reads)

    async def _get(self, merged: MergedRange) -> LogRecord | None:
        try:
            return await self._merged.get(merged)
        except DamagedFrame as error:
            log.warning("%s; reading smaller ones", error)
            return None


class _Progress:
    """Shows how many bytes of an image were read, if that takes longer than a second."""

    def __init__(self, clock: Clock = boot_clock) -> None:
        self._clock = clock
        self._done = self._total = 0
        self._began_at = 0.0

    def begin(self, total: int) -> None:
        self._done, self._total, self._began_at = 0, total, self._clock()

    def advance(self, size: int) -> None:
        self._done += size
        if self._clock() - self._began_at >= _QUIET_TIME:
            show(_OPERATION, min(self._done, self._total), self._total)

    def end(self) -> None:
        if self._clock() - self._began_at >= _QUIET_TIME:
            show(_OPERATION, self._total, self._total)
