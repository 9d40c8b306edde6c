"""Merges records and writes images, so that a new process reads the current state instead of the whole history.

Any process may do it at any time. Merged records have the names of their ranges and are create-only; two processes that
merge the same range write objects of equal meaning, and the first one stays. An image is in use once the checkpoint
names it.

How the shard of a log uses a compactor:

- after each record that its replica has committed or applied: `if compactor.saw(record) and the record is its own`,
  start `compactor.end_block(record.header.last, pin)` in the background;
- in `repair()`: `await compactor.repair(pin)`, then `await garbage.collect()`.

`pin` takes the lock of the replica and returns `replica.pin()`. It is called only when an image is due.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TypeVar

from qo.bucket import Bucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, LogCheckpoint, LogImage
from qo.engines.replicated_log.frame import HEADER_SIZE, DamagedFrame, FrameFlags, FrameHeader
from qo.engines.replicated_log.images import ImageParts
from qo.engines.replicated_log.keys import NO_ID, FrameKind
from qo.engines.replicated_log.log_damage import LogDamageNotes
from qo.engines.replicated_log.merged_records import BLOCK_SIZE, MAX_LEVEL, MergedRange, MergedRecords, block_of
from qo.engines.replicated_log.record_store import DamagedRecord, LogRecord, RecordStore
from qo.engines.replicated_log.replica_file import PinnedReplica, ReplicaFile
from qo.engines.replicated_log.runner import Runner, run_inline
from qo.engines.requests import in_parallel
from qo.errors import Conflict
from qo.ids import new_token
from qo.sqlite_tables.patchsets import merge_patchsets

log = logging.getLogger("qo.engines.replicated_log")

IMAGE_THRESHOLD = 4 * 1024 * 1024  # stored bytes since the last image
_IMAGE_SHARE = 0.5  # of the last image's size
_USUAL_COMPRESSION = 8  # of patchsets: this process does not know the stored size of its own records
_OVERDUE = 1.5  # times the bytes of a due image: `repair` runs too rarely for this rate, so a writer creates the image
_MAX_KEPT_BYTES = 4 * 1024 * 1024  # of patchsets that were seen and may be merged soon
_MAX_MERGED_BYTES = 8 * 1024 * 1024  # raw; larger blocks are read as their parts, and loaders hold some in memory
_MAX_READS = 8  # concurrent
_MAX_UNMERGEABLE = 100_000  # remembered

Item = TypeVar("Item")

Pin = Callable[[], Awaitable[PinnedReplica]]


class LogCompactor:
    def __init__(
        self,
        bucket: Bucket,
        log_id: str,
        shard: int,
        *,
        writer: str = NO_ID,
        runner: Runner = run_inline,
        block_size: int = BLOCK_SIZE,
        image_threshold: int = IMAGE_THRESHOLD,
    ) -> None:
        self._bucket, self._shard, self._writer, self._run = bucket, shard, writer, runner
        self._block_size, self._image_threshold = block_size, image_threshold
        self._checkpoints = CheckpointStore(bucket, log_id, shard)
        self._images = ImageParts(bucket, log_id, shard, runner)
        self._merged = MergedRecords(bucket, log_id, shard, runner)
        self._records = RecordStore(bucket, log_id, shard, run=runner)
        self._damage = LogDamageNotes(bucket, shard)
        self._kept: OrderedDict[int, LogRecord] = OrderedDict()  # the last records seen, by number
        self._kept_bytes = 0
        self._volume: dict[int, int] = {}  # stored bytes of the records seen, by the end of their block
        self._raw_sizes: dict[int, int] = {}  # of the records seen of the last block, by number
        self._position = 0  # the last number seen
        self._unmergeable: set[MergedRange] = set()  # too large, or with a change of the tables
        self._image_lock = asyncio.Lock()

    # --- what the replica has seen

    def saw(self, record: LogRecord) -> bool:
        """Count a record that the replica now contains. Returns whether it is the last record of a block."""
        header = record.header
        block = block_of(header.last, self._block_size)
        size = HEADER_SIZE + (header.stored_bytes or len(record.patchset) // _USUAL_COMPRESSION)
        self._volume[block.last] = self._volume.get(block.last, 0) + size
        self._position = max(self._position, header.last)
        if header.kind is FrameKind.RECORD:
            self._keep(record)
            self._measure(record, block)
        return header.kind is FrameKind.RECORD and header.last == block.last

    def shrank(self, size: int) -> None:
        """Count the stored bytes of tasks that the next image will not contain."""
        block = block_of(self._position, self._block_size)
        self._volume[block.last] = self._volume.get(block.last, 0) + size

    def _keep(self, record: LogRecord) -> None:
        former = self._kept.pop(record.header.first, None)  # of a replica that was loaded again
        self._kept_bytes += len(record.patchset) - (len(former.patchset) if former else 0)
        self._kept[record.header.first] = record
        while self._kept_bytes > _MAX_KEPT_BYTES or len(self._kept) > 2 * self._block_size:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.patchset)

    # --- merged records

    async def end_block(self, seq: int, pin: Pin) -> None:
        """Call in the process that wrote the last record of a block."""
        await self.merge_block(1, seq)
        if not self._image_lock.locked() and await self.is_image_due(_OVERDUE):
            await self.write_image(pin)

    async def merge_block(self, level: int, seq: int) -> bool:
        """Merge the block that contains a number. Returns whether it is merged now; False if it cannot be."""
        return await self._merge(block_of(seq, self._block_size, level), level)

    async def _merge(self, block: MergedRange, level: int) -> bool:
        if block in self._unmergeable:
            return False
        try:
            inputs = await (self._originals(block) if level == 1 else self._parts(block, level))
        except (DamagedRecord, DamagedFrame) as error:
            log.warning("records %d to %d were not merged: %s", block.first, block.last, error)
            return False
        if inputs is None:
            return False
        if not inputs or not _are_mergeable(inputs, block):
            self._leave(block)
            return False
        merged = await self._run(lambda: merge_records(inputs))
        with suppress(Conflict):  # another process was faster; its object has the same effect
            await self._merged.create(merged)
        return True

    def _measure(self, record: LogRecord, block: MergedRange) -> None:
        """Find out whether a block is too large without reading its records."""
        self._raw_sizes = {seq: size for seq, size in self._raw_sizes.items() if block.first <= seq <= block.last}
        self._raw_sizes[record.header.first] = len(record.patchset)
        if sum(self._raw_sizes.values()) > _MAX_MERGED_BYTES:
            self._leave(block)

    def _leave(self, block: MergedRange) -> None:
        """Never merge this block."""
        if len(self._unmergeable) < _MAX_UNMERGEABLE:
            self._unmergeable.add(block)

    async def _originals(self, block: MergedRange) -> list[LogRecord] | None:
        return await _read_limited(range(block.first, block.last + 1), self._original)

    async def _original(self, seq: int) -> LogRecord | None:
        return self._kept.get(seq) or await self._records.get(seq)

    async def _parts(self, block: MergedRange, level: int) -> list[LogRecord] | None:
        return await _read_limited(self._inner(block, level), self._merged.get)

    def _inner(self, block: MergedRange, level: int) -> list[MergedRange]:
        """The blocks of the level below."""
        size = self._block_size ** (level - 1)
        starts = range(block.first // size * size, block.last, size)
        return [block_of(start, self._block_size, level - 1) for start in starts]

    # --- images

    async def is_image_due(self, factor: float = 1.0) -> bool:
        return self._is_due(await self._checkpoints.read(), factor)

    def _is_due(self, checkpoint: LogCheckpoint, factor: float = 1.0) -> bool:
        newest = checkpoint.newest_image
        since = newest.seq if newest else 0
        self._volume = {last: size for last, size in self._volume.items() if last > since}
        limit = max(self._image_threshold, _IMAGE_SHARE * newest.bytes if newest else 0)
        return sum(self._volume.values()) > factor * limit

    async def write_image(self, pin: Pin, *, instead_of: str = "") -> LogImage | None:
        """Store the replica as it is, and add it to the checkpoint. None: there already is an image at this position.

        `instead_of` is the token of a damaged image, which is removed from the checkpoint.
        """
        async with self._image_lock:
            return await self._write_image(pin, instead_of)

    async def _write_image(self, pin: Pin, instead_of: str = "") -> LogImage | None:
        checkpoint = await self._checkpoints.read()
        known = max((image.seq for image in checkpoint.images if image.token != instead_of), default=0)
        pinned = await pin()
        try:
            if pinned.position.seq <= known:
                return None
            file = await self._run(lambda: ReplicaFile.create(pinned.size))
            try:
                image = await self._images.write(pinned, file.path, writer=self._writer)
            finally:
                await self._run(file.remove)
        finally:
            await self._run(pinned.close)
        listed = await self._checkpoints.change(lambda current: _with_image(current, image, instead_of))
        if image not in listed.images:  # other processes were faster
            return None
        log.info("wrote an image of %d bytes at record %d", image.bytes, image.seq)
        return image

    # --- repair

    async def repair(self, pin: Pin) -> int:
        """Write the image that is due, and merge what is not merged yet. Returns the number of objects written."""
        written = await self._heal(pin)
        async with self._image_lock:  # an image that is being written may be the one that is due
            if await self.is_image_due() and await self._write_image(pin):
                written += 1
        return written + await self._merge_missing(await self._checkpoints.read())

    async def _heal(self, pin: Pin) -> int:
        """Write an image that replaces damaged objects, if the replica has their content."""
        written = 0
        for damage in await self._damage.reported():
            images = (await self._checkpoints.read()).images
            if any(image.seq >= damage.seq and image.token != damage.image_token for image in images):
                await self._damage.healed(damage)
            elif damage.seq <= self._position and await self.write_image(pin, instead_of=damage.image_token):
                log.warning("%s is damaged; an image replaces it, so no process needs it", damage.key)
                await self._damage.healed(damage)
                written += 1
        return written

    async def _merge_missing(self, checkpoint: LogCheckpoint) -> int:
        oldest = checkpoint.images[-1].seq if checkpoint.images else 0
        stored = set(await self._merged.ranges(oldest))
        written = 0
        for merged, level in self._wanted(checkpoint, oldest):
            has_inputs = (
                merged.first >= checkpoint.floor if level == 1 else stored.issuperset(self._inner(merged, level))
            )
            if has_inputs and merged not in stored and await self._merge(merged, level):
                stored.add(merged)
                written += 1
        return written

    def _wanted(self, checkpoint: LogCheckpoint, oldest: int) -> list[tuple[MergedRange, int]]:
        """The ranges after the older image, the lower levels first, and those from an image to the end of its block."""
        wanted = [
            (MergedRange(image.seq + 1, block_of(image.seq + 1, self._block_size).last), 1)
            for image in checkpoint.images
        ]
        for level in range(1, MAX_LEVEL + 1):
            width = self._block_size**level
            start = block_of(oldest + 1, self._block_size, level)
            first = start if start.first > oldest else block_of(start.last + 1, self._block_size, level)
            for begin in range(first.last - width + 1, self._position, width):
                block = block_of(begin, self._block_size, level)
                wanted.append((block, level))
        return [(merged, level) for merged, level in dict.fromkeys(wanted) if merged.last <= self._position]


def _with_image(checkpoint: LogCheckpoint, image: LogImage, instead_of: str) -> LogCheckpoint:
    after = checkpoint.without_image(instead_of).with_image(image)
    return after if image in after.images else checkpoint


def merge_records(records: Sequence[LogRecord]) -> LogRecord:
    """One record with the effect of consecutive ones."""
    first, last = records[0].header, records[-1].header
    flags = FrameFlags.NONE
    for record in records:
        flags |= record.header.flags
    header = FrameHeader(
        FrameKind.MERGED,
        first.shard,
        first.first,
        last.last,
        new_token(),
        previous=first.previous,
        last_id=last.last_id,
        at=last.at,
        writer=last.writer,
        schema=last.schema,
        schema_since=max(record.header.schema_since for record in records),
        flags=flags,
    )
    return LogRecord(header, merge_patchsets(record.patchset for record in records))


async def _read_limited(
    items: Sequence[Item], read: Callable[[Item], Awaitable[LogRecord | None]]
) -> list[LogRecord] | None:
    """The records of a block; None if one does not exist, empty if they are too large to be merged."""
    records, total = list[LogRecord](), 0
    for at in range(0, len(items), _MAX_READS):
        for record in await in_parallel(read, items[at : at + _MAX_READS]):
            if record is None:
                return None
            records.append(record)
            total += len(record.patchset)
        if total > _MAX_MERGED_BYTES:
            return []
    return records


def _are_mergeable(records: Sequence[LogRecord], block: MergedRange) -> bool:
    """Whether they are the complete block, and one schema can apply them."""
    if records[0].header.first != block.first or records[-1].header.last != block.last:
        return False
    if any(FrameFlags.SCHEMA_STEP in record.header.flags for record in records):
        return False
    is_chain = all(
        after.header.first == before.header.last + 1 and after.header.previous == before.header.last_id
        for before, after in pairwise(records)
    )
    return is_chain and len({record.header.schema for record in records}) == 1
