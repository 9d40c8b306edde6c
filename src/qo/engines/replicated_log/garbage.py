"""Deletes what no replica needs.

The floor is moved up before anything below it is deleted, so a writer or reader that was suspended can distinguish a
number whose record was deleted from one that was never used. It moves past a record only if the record is a day old.
Both times of this comparison are the store's own: of the record, and of the checkpoint. A wrong clock of this machine
deletes nothing.
"""

import logging
from collections.abc import Mapping, Sequence

from qo.bucket import Bucket
from qo.engines.replicated_log.checkpoint import (
    KEPT_IMAGES,
    CheckpointStore,
    LogCheckpoint,
    LogImage,
    StoredCheckpoint,
)
from qo.engines.replicated_log.frame import DamagedFrame
from qo.engines.replicated_log.keys import image_prefix, images_prefix, parse_key, record_key, records_prefix
from qo.engines.replicated_log.merged_records import MergedRange, MergedRecords, chosen
from qo.engines.requests import in_parallel, retry

log = logging.getLogger("qo.engines.replicated_log")

MIN_RECORD_AGE = 86_400.0  # seconds
_TOUCH_SHARE = 24  # write the checkpoint again if it is older than one part in 24 of the minimal age
_MIN_STEP = 64  # records; a smaller step of the floor is not worth a write
_MAX_DELETES = 64  # at once

_ImageName = tuple[int, str]  # number and token


class LogGarbage:
    """Call `collect` from `repair()`. Several processes may do so concurrently."""

    def __init__(
        self,
        bucket: Bucket,
        log_id: str,
        shard: int,
        *,
        min_record_age: float = MIN_RECORD_AGE,
        min_step: int = _MIN_STEP,
    ) -> None:
        self._bucket, self._log, self._shard = bucket, log_id, shard
        self._min_record_age, self._min_step = min_record_age, min_step
        self._checkpoints = CheckpointStore(bucket, log_id, shard)
        self._merged = MergedRecords(bucket, log_id, shard)
        self._first: tuple[int, float] | None = None  # the number of the first record, and when it was written
        self._verified: dict[MergedRange, tuple[str, str]] = {}  # the ids before and after merged records

    async def collect(self) -> int:
        """Move the floor, then delete. Returns the number of deleted objects."""
        await self.move_floor()
        return await self.delete_below_floor()

    # --- the floor

    async def move_floor(self) -> LogCheckpoint:
        """Move the floor up past old records that both images and the merged records after them replace."""
        stored = await self._checkpoints.load()
        checkpoint = stored.checkpoint
        if len(checkpoint.images) < KEPT_IMAGES or not await self._may_move(checkpoint.floor):
            return checkpoint
        paths = [await self._path(image) for image in checkpoint.images]
        end = min(path[-1] for path in paths)
        if end + 1 < checkpoint.floor + self._min_step:
            return checkpoint
        floor = _reachable(await self._last_old(checkpoint.floor, end, stored), paths) + 1
        if floor < checkpoint.floor + self._min_step:
            return checkpoint

        def raised(current: LogCheckpoint) -> LogCheckpoint:
            # The verified ranges refer to these images.
            return current.with_floor(floor) if current.images == checkpoint.images else current

        return await self._checkpoints.change(raised)

    async def _may_move(self, floor: int) -> bool:
        """Whether the first record is old by the clock of this machine, which only saves requests."""
        if self._first is None or self._first[0] != floor:
            written_at = await self._written_at(floor)
            if written_at is None:
                return False
            self._first = floor, written_at
        return self._first[1] <= self._bucket.now() - self._min_record_age

    async def _path(self, image: LogImage) -> list[int]:
        """The numbers that a new process can reach from an image through merged records.

        [0] if the image is damaged, or if another process has replaced it.
        """
        prefix = image_prefix(self._log, self._shard, image.seq, image.token)
        if len(await self._listed(prefix)) < image.parts:
            if image in (await self._checkpoints.read()).images:
                log.error("parts of the image %s are missing, so nothing is deleted; see `qo doctor`", prefix)
            return [0]
        path, record_id = [image.seq], image.id
        for merged in chosen(image.seq, await self._merged.ranges(image.seq)):
            before, after = await self._ids(merged)
            if before != record_id:
                break
            path.append(merged.last)
            record_id = after
        return path

    async def _ids(self, merged: MergedRange) -> tuple[str, str]:
        """The ids of the record before a range and of its last one, if the merged record can be read."""
        if merged not in self._verified:
            try:
                record = await self._merged.get(merged)
            except DamagedFrame as error:
                log.warning("%s", error)
                record = None
            if record is None:
                return "", ""
            self._verified[merged] = record.header.previous, record.header.last_id
        return self._verified[merged]

    async def _last_old(self, floor: int, end: int, stored: StoredCheckpoint) -> int:
        """The highest number up to `end` whose record is old enough, or a little less; `floor - 1` if none is.

        Records are created in the order of their numbers, so a binary search finds it. Only the record that was found
        old decides.
        """
        if self._bucket.now() - stored.written_at > self._min_record_age / _TOUCH_SHARE:
            stored = await self._checkpoints.touch()
        latest = stored.written_at - self._min_record_age
        old, young = floor - 1, end + 1
        while young - old > 1:
            middle = end if (old, young) == (floor - 1, end + 1) else (old + young) // 2
            written_at = await self._written_at(middle)
            if written_at is not None and written_at <= latest:
                old = middle
            else:
                young = middle
        return old

    async def _written_at(self, seq: int) -> float | None:
        blob = await retry(lambda: self._bucket.get(record_key(self._log, self._shard, seq)))
        return blob and blob.written_at

    # --- deletion

    async def delete_below_floor(self) -> int:
        """Delete records below the floor, merged records that both images contain, and images that nothing names."""
        stored = await self._checkpoints.load()
        checkpoint = stored.checkpoint
        garbage = await self._records_below(checkpoint.floor) if checkpoint.floor > 1 else []
        parts = await self._parts() if len(checkpoint.images) == KEPT_IMAGES else {}
        if parts and not self._is_incomplete(checkpoint, parts):
            oldest = checkpoint.images[-1].seq
            garbage += [self._merged.key(merged) for merged in await self._merged.ranges() if merged.last <= oldest]
            self._verified = {merged: ids for merged, ids in self._verified.items() if merged.last > oldest}
            garbage += await self._unnamed_parts(stored, parts)
        await in_parallel(self._delete, garbage, max_concurrent=_MAX_DELETES)
        return len(garbage)

    async def _delete(self, key: str) -> None:
        await retry(lambda: self._bucket.delete(key))

    async def _records_below(self, floor: int) -> list[str]:
        """Records that were merged, and those of a suspended writer that used a number again."""
        end = record_key(self._log, self._shard, floor)

        async def below() -> list[str]:
            found: list[str] = []
            async for key in self._bucket.keys(records_prefix(self._log, self._shard)):
                if key >= end:
                    break
                found.append(key)
            return found

        return await retry(below)

    async def _parts(self) -> dict[_ImageName, list[str]]:
        """The keys of all parts of images."""
        parts: dict[_ImageName, list[str]] = {}
        for key in await self._listed(images_prefix(self._log, self._shard)):
            name = parse_key(key)
            if name is not None and name.token is not None:
                parts.setdefault((name.first, name.token), []).append(key)
        return parts

    def _is_incomplete(self, checkpoint: LogCheckpoint, parts: Mapping[_ImageName, Sequence[str]]) -> bool:
        return any(len(parts.get((image.seq, image.token), ())) < image.parts for image in checkpoint.images)

    async def _unnamed_parts(self, stored: StoredCheckpoint, parts: Mapping[_ImageName, list[str]]) -> list[str]:
        """Parts of replaced images, and of images whose writer failed a day ago.

        An image that is older than both images of the checkpoint is never added to it. A newer one may be about to be.
        """
        images, garbage = stored.checkpoint.images, list[str]()
        named = {(image.seq, image.token) for image in images}
        for name, keys in parts.items():
            if name not in named and (name[0] < images[-1].seq or await self._is_abandoned(keys, stored)):
                garbage += keys
        return garbage

    async def _is_abandoned(self, keys: Sequence[str], stored: StoredCheckpoint) -> bool:
        blob = await retry(lambda: self._bucket.get(keys[0]))
        return blob is not None and blob.written_at <= stored.written_at - self._min_record_age

    async def _listed(self, prefix: str) -> list[str]:
        async def listed() -> list[str]:
            return [key async for key in self._bucket.keys(prefix)]

        return await retry(listed)


def _reachable(seq: int, paths: Sequence[Sequence[int]]) -> int:
    """The highest number up to `seq` that is in every image, or that a new process can reach through merged records."""
    candidates = [seq, *(number for path in paths for number in path if number < seq)]
    return max(
        (number for number in candidates if all(number <= path[0] or number in path for path in paths)), default=0
    )
