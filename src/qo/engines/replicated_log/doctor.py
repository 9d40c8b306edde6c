"""`qo doctor` for the layout `log`: verifies a log from end to end. It only reads.

The chain of records, each merged record against its records, each image against a replay from an earlier state, and the
segments that the tables name.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import apsw

from qo.bucket import Bucket
from qo.engines.replicated_log.checkpoint import CheckpointStore, LogCheckpoint, LogImage, StoredCheckpoint
from qo.engines.replicated_log.cold_store import ColdStore
from qo.engines.replicated_log.compaction import merge_records
from qo.engines.replicated_log.doctor_tables import compare_counts, digest_of, examine_segment
from qo.engines.replicated_log.frame import DamagedFrame, get_frame
from qo.engines.replicated_log.images import DamagedImage, ImageParts
from qo.engines.replicated_log.keys import (
    NO_ID,
    images_prefix,
    parse_key,
    records_prefix,
    shard_prefix,
    submissions_prefix,
)
from qo.engines.replicated_log.log_meta import LogMeta, read_meta
from qo.engines.replicated_log.merged_records import MergedRange, MergedRecords, chosen
from qo.engines.replicated_log.record_store import DamagedRecord, LogPosition, LogRecord, RecordStore
from qo.engines.replicated_log.replica import Replica, UnappliableRecord
from qo.engines.replicated_log.replica_file import ReplicaFile
from qo.engines.replicated_log.runner import run_inline
from qo.engines.requests import in_parallel
from qo.errors import StorageError
from qo.model import plural
from qo.reports import Finding

_FULL = "QO_DOCTOR_FULL"  # environment variable: verify everything, however large
_MAX_IMAGE_BYTES = 64 * 1024 * 1024  # stored; of larger images only the newest is loaded
_MAX_RECORDS = 20_000
_MAX_SUBMISSIONS = 1_000
_MAX_SEGMENTS = 200
_MAX_NAMED = 5
_MAX_READS = 32
_RESTORE = (
    "restore an older version of these objects, or keep one of the running workers alive: it writes a new image at its"
    " next repair"
)


async def examine_log(bucket: Bucket) -> list[Finding]:
    """One finding for each kind of object. Set QO_DOCTOR_FULL=1 to verify a large log completely."""
    try:
        meta = await read_meta(bucket)
        if meta is None:
            return [Finding("log", True, "there is no log yet; the first task creates it")]
        shards = [await _ShardExamination(bucket, meta, shard).run() for shard in range(meta.shards)]
    except StorageError as error:
        return [Finding("log", False, str(error))]
    return shards[0] if meta.shards == 1 else [found for kind in zip(*shards, strict=True) for found in _combined(kind)]


def _combined(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for all shards without problems, and one for each of the others."""
    fine = {shard: finding.detail for shard, finding in enumerate(findings) if finding.ok}
    details = [f"shard {shard}: {detail}" for shard, detail in fine.items()]
    if len(details) > 1 and len(set(fine.values())) == 1:
        details = [f"{len(fine)} shards: {fine.popitem()[1]}"]
    wrong = [finding for finding in findings if not finding.ok]
    if not details:
        return wrong
    rest = f"; and {len(details) - _MAX_NAMED} more" if len(details) > _MAX_NAMED else ""
    name = findings[0].name.partition(" of shard ")[0]
    return [Finding(name, True, "; ".join(details[:_MAX_NAMED]) + rest), *wrong]


class _ShardExamination:
    def __init__(self, bucket: Bucket, meta: LogMeta, shard: int) -> None:
        self._bucket, self._meta, self._shard = bucket, meta, shard
        self._where = f" of shard {shard}" if meta.shards > 1 else ""
        self._is_full = bool(os.environ.get(_FULL))
        self._place = shard_prefix(meta.id, shard)
        self._images = ImageParts(bucket, meta.id, shard, run_inline)
        self._merged = MergedRecords(bucket, meta.id, shard)
        self._store = RecordStore(bucket, meta.id, shard)
        self._records: dict[int, LogRecord] = {}  # those that could be read

    async def run(self) -> list[Finding]:
        stored = await CheckpointStore(self._bucket, self._meta.id, self._shard).load()
        numbers = await self._numbers()
        return [
            self._summary(stored, numbers),
            await self._examine_records(stored.checkpoint, numbers),
            await self._examine_merged(),
            await self._examine_images(stored.checkpoint, _end(stored.checkpoint, numbers)),
            await self._examine_submissions(),
            await self._examine_garbage(stored.checkpoint, numbers),
            *await self._examine_tables(stored.checkpoint, _end(stored.checkpoint, numbers)),
        ]

    async def _numbers(self) -> list[int]:
        keys = [key async for key in self._bucket.keys(records_prefix(self._meta.id, self._shard))]
        return [name.first for name in map(parse_key, keys) if name is not None]

    def _summary(self, stored: StoredCheckpoint, numbers: list[int]) -> Finding:
        image, last = stored.checkpoint.newest_image, _end(stored.checkpoint, numbers)
        about = f"format {self._meta.format}, {self._meta.shards} shard(s), record {last:,}"
        if image is None:
            return Finding("log", True, f"{about}; no image yet")
        return Finding(
            "log", True, f"{about}; the newest image is at record {image.seq:,}, with {image.bytes / 1e6:,.1f} MB"
        )

    # --- records

    async def _examine_records(self, checkpoint: LogCheckpoint, numbers: list[int]) -> Finding:
        name = f"records{self._where}"
        valid = [number for number in numbers if number >= checkpoint.floor]
        examined = valid if self._is_full else valid[-_MAX_RECORDS:]
        damaged = [
            f"{self._store.key(after - 1)} is missing" for before, after in pairwise(valid) if after > before + 1
        ]
        if valid and valid[0] > checkpoint.floor:
            damaged.append(f"{self._store.key(checkpoint.floor)} is missing")
        for at in range(0, len(examined), _MAX_READS):
            for found in await in_parallel(self._read, examined[at : at + _MAX_READS]):
                damaged += [found] if isinstance(found, str) else self._broken_chain(found)
        if damaged:
            return Finding(name, False, f"{_named(damaged)}; {_RESTORE}")
        kept = "" if len(examined) == len(valid) else f"; {len(valid) - len(examined):,} older ones: set {_FULL}=1"
        return Finding(name, True, f"{plural(len(examined), 'record')} can be read and follow each other{kept}")

    async def _read(self, seq: int) -> LogRecord | str:
        try:
            record = await self._store.get(seq)
        except DamagedRecord as error:
            return str(error.__cause__ or error)
        return record or f"{self._store.key(seq)} was deleted during the check"

    def _broken_chain(self, record: LogRecord) -> list[str]:
        seq = record.header.first
        self._records[seq] = record
        before = self._records.get(seq - 1)
        previous = NO_ID if seq == 1 else before and before.header.id
        if previous is None or previous == record.header.previous:
            return []
        return [f"{self._store.key(seq)} does not follow the record before it"]

    # --- merged records

    async def _examine_merged(self) -> Finding:
        name, damaged, compared = f"merged{self._where}", list[str](), 0
        ranges = await self._merged.ranges()
        for merged in ranges:
            problem = await self._examine_range(merged)
            compared += problem is None
            damaged += [problem] if problem else []
        if damaged:
            return Finding(
                name, False, f"{_named(damaged)}; delete these objects if their records exist, or {_RESTORE}"
            )
        return Finding(
            name,
            True,
            f"{plural(len(ranges), 'merged record')} can be read; {compared:,} were compared with their records",
        )

    async def _examine_range(self, merged: MergedRange) -> str | None:
        """A problem, None if the range equals its records, or an empty text if they no longer exist."""
        key = self._merged.key(merged)
        try:
            found = await self._merged.get(merged)
        except DamagedFrame as error:
            return str(error)
        if found is None:
            return ""
        records = [self._records[seq] for seq in range(merged.first, merged.last + 1) if seq in self._records]
        if len(records) < merged.size:
            return ""
        expected = merge_records(records)
        is_same = (
            found.header.previous == expected.header.previous
            and found.header.last_id == expected.header.last_id
            and found.header.flags == expected.header.flags
            and _changes(found.patchset) == _changes(expected.patchset)
        )
        return None if is_same else f"{key} does not equal the records that it replaces"

    # --- images

    async def _examine_images(self, checkpoint: LogCheckpoint, end: int) -> Finding:
        """Every image, and the empty tables if no record was deleted, must lead to the same rows at record `end`."""
        name, images = f"images{self._where}", checkpoint.images
        if not images:
            return Finding(name, True, "there is no image yet; a monitor writes one when the log has grown")
        is_large = images[0].bytes > _MAX_IMAGE_BYTES and not self._is_full
        bases: list[LogImage | None] = [images[0]] if is_large else [*images]
        if checkpoint.floor == 1 and not is_large:
            bases.append(None)
        damaged, expected, compared = list[str](), "", 0
        for base in reversed(bases):  # the oldest first: the others are compared with it
            try:
                found = await self._replayed(base, checkpoint.floor, end, needs_digest=len(bases) > 1)
            except (DamagedImage, UnappliableRecord) as error:
                damaged.append(str(error))
                continue
            if found and expected and found != expected and base is not None:
                damaged.append(f"{self._images.key(base, 0)} and the parts after it do not equal a replay of the log")
            expected = expected or found
            compared += bool(found)
        if damaged:
            return Finding(name, False, f"{_named(damaged)}; {_RESTORE}")
        if is_large:
            return Finding(name, True, f"the newest image leads to record {end:,}; set {_FULL}=1 to compare them")
        are_equal = ", and all lead to the same rows" if compared > 1 else ""
        return Finding(name, True, f"{len(images)} image(s) can be loaded{are_equal}")

    @asynccontextmanager
    async def _loaded(self, image: LogImage | None) -> AsyncIterator[Replica]:
        """A replica from an image, or an empty one."""
        if image is None:
            replica = Replica(self._place, schema=self._meta.first_schema)
        else:
            file = ReplicaFile.create(image.raw_bytes)
            try:
                await self._images.read(image, file.path, lambda _: None)
                replica = Replica(self._place, file, LogPosition(image.seq, image.id))
            except BaseException:
                file.remove()
                raise
        try:
            yield replica
        finally:
            replica.close()

    async def _replayed(self, base: LogImage | None, floor: int, end: int, *, needs_digest: bool) -> str:
        """The digest of the rows at record `end`; empty if a required object is damaged, which is also reported."""
        async with self._at_end(base, floor, end) as replica:
            return digest_of(replica) if needs_digest and replica.position.seq == end else ""

    @asynccontextmanager
    async def _at_end(self, base: LogImage | None, floor: int, end: int) -> AsyncIterator[Replica]:
        """A replica at record `end`, or before it if a required object is damaged."""
        async with self._loaded(base) as replica:
            for merged in chosen(replica.position.seq, await self._merged.ranges(replica.position.seq)):
                block = await self._merged.get(merged) if merged.first < floor else None
                if block is None:
                    break
                replica.apply(block)
            while replica.position.seq < end and (record := await self._record(replica.position.seq + 1)):
                replica.apply(record)
            yield replica

    async def _record(self, seq: int) -> LogRecord | None:
        if seq in self._records:
            return self._records[seq]
        found = await self._read(seq)
        return None if isinstance(found, str) else found

    # --- counts and segments

    async def _examine_tables(self, checkpoint: LogCheckpoint, end: int) -> list[Finding]:
        """The counts must agree with the tasks. Every segment must be readable, and contain what its row says."""
        counts, segments = f"counts{self._where}", f"cold segments{self._where}"
        try:
            async with self._at_end(checkpoint.newest_image, checkpoint.floor, end) as replica:
                if replica.position.seq == end:
                    return [compare_counts(counts, replica), await self._compare_segments(segments, replica)]
        except (DamagedImage, DamagedFrame, UnappliableRecord):
            pass
        return [Finding(name, None, "not examined, because the tables cannot be read") for name in (counts, segments)]

    async def _compare_segments(self, name: str, replica: Replica) -> Finding:
        store = ColdStore(self._bucket, self._meta.id, self._shard)
        segments = replica.read(lambda reader: reader.segments())
        examined = segments if self._is_full else segments[:_MAX_SEGMENTS]
        problems = {segment.object: await examine_segment(store, replica, segment) for segment in examined}
        if any(problems.values()):  # tasks that returned to the tables in the meantime are not damage
            while record := await self._record(replica.position.seq + 1):
                replica.apply(record)
        listed = {segment.object for segment in replica.read(lambda reader: reader.segments())}
        damaged = [f"{store.key(key)}: {problem}" for key, problem in problems.items() if problem and key in listed]
        if damaged:
            return Finding(name, False, f"{_named(damaged)}; restore an older version of these objects")
        tasks = sum(segment.tasks for segment in segments)
        rest = "" if len(examined) == len(segments) else f"; {len(examined):,} were read: set {_FULL}=1 to read all"
        return Finding(name, True, f"{plural(tasks, 'task')} in {plural(len(segments), 'object')}{rest}")

    # --- submissions and garbage

    async def _examine_submissions(self) -> Finding:
        name = f"submissions{self._where}"
        keys = [key async for key in self._bucket.keys(submissions_prefix(self._meta.id, self._shard))]
        damaged: list[str] = []
        oldest = self._bucket.now()
        for key in keys[:_MAX_SUBMISSIONS]:
            try:
                frame = await get_frame(self._bucket, key)
            except DamagedFrame as error:
                damaged.append(str(error))
            else:
                oldest = min(oldest, frame.written_at) if frame else oldest
        if damaged:
            return Finding(name, False, f"{_named(damaged)}; submit these tasks again, then delete the objects")
        if not keys:
            return Finding(name, True, "no submissions are waiting")
        age = self._bucket.now() - oldest
        return Finding(name, True, f"{len(keys):,} submissions are waiting for a worker, the oldest for {age:,.0f} s")

    async def _examine_garbage(self, checkpoint: LogCheckpoint, numbers: list[int]) -> Finding:
        name = f"garbage{self._where}"
        named = {(image.seq, image.token) for image in checkpoint.images}
        keys = [key async for key in self._bucket.keys(images_prefix(self._meta.id, self._shard))]
        parts = [found for found in map(parse_key, keys) if found and (found.first, found.token) not in named]
        below = [number for number in numbers if number < checkpoint.floor]
        if not parts and not below:
            return Finding(name, True, "there is nothing to delete")
        old, unused = plural(len(below), "old record"), plural(len(parts), "part")
        return Finding(name, True, f"a monitor deletes {old}, and {unused} of old images after a day")


def _end(checkpoint: LogCheckpoint, numbers: list[int]) -> int:
    """The number of the last record. Its object may be deleted if an image or a merged record contains it."""
    return max([*numbers, checkpoint.floor - 1, *(image.seq for image in checkpoint.images)])


def _named(problems: list[str]) -> str:
    return "; ".join(problems[:_MAX_NAMED]) + (
        f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
    )


def _changes(patchset: bytes) -> dict[tuple[Any, ...], tuple[str, Any]]:
    """The changes of a patchset by table and key, independent of their order."""
    changes: dict[tuple[Any, ...], tuple[str, Any]] = {}
    for change in apsw.Changeset.iter(patchset):
        values = change.old or change.new or ()
        key = (change.name, *(values[column] for column in sorted(change.pk_columns)))
        changes[key] = change.op, change.new
    return changes
