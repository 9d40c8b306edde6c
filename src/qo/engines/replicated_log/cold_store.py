"""The objects of the cold segments of one shard."""

from collections.abc import Sequence

from qo.bucket import Bucket
from qo.engines.replicated_log.frame import DamagedFrame, FrameHeader, create_frame, get_frame
from qo.engines.replicated_log.keys import FrameKind, parse_key, segment_key, segment_name, segments_prefix
from qo.engines.replicated_log.runner import Runner, run_inline
from qo.engines.requests import in_parallel, retry
from qo.errors import Refused
from qo.formats import Format, check_format
from qo.ids import new_token
from qo.sqlite_tables.header import VERSION
from qo.sqlite_tables.segments import ColdSegment, SegmentDraft

_MAX_DELETES = 64  # at once


class DamagedSegment(Refused):
    """The object of a segment is missing or cannot be read."""


class ColdStore:
    """The objects of the segments of one shard."""

    def __init__(self, bucket: Bucket, log_id: str, shard: int, run: Runner = run_inline) -> None:
        self._bucket, self._log, self._shard, self._run = bucket, log_id, shard, run

    def key(self, name: str) -> str:
        return segment_key(self._log, self._shard, name)

    async def names(self) -> list[str]:
        """The names of all objects."""
        prefix = segments_prefix(self._log, self._shard)

        async def listed() -> list[str]:
            return [key.removeprefix(prefix) async for key in self._bucket.keys(prefix) if parse_key(key) is not None]

        return await retry(listed)

    async def write(self, draft: SegmentDraft, limit: int, since: int) -> tuple[str, int]:
        """Store a new segment, which records up to `limit` may add. Returns its name and its size.

        `since`: the oldest version of the tables whose builds may use the log.
        """
        token = new_token()
        name = segment_name(limit, token)
        header = FrameHeader(
            FrameKind.SEGMENT,
            self._shard,
            limit,
            len(draft.states),
            token,
            at=self._bucket.now(),
            schema=VERSION,
            schema_since=since,
        )
        return name, await create_frame(self._bucket, self.key(name), header, draft.body, self._run)

    async def read(self, segment: ColdSegment) -> bytes:
        """The patchset that inserts the tasks. Raises DamagedSegment, or NewerFormat."""
        key = self.key(segment.object)
        try:
            frame = await get_frame(self._bucket, key, self._run)
        except DamagedFrame as error:
            raise self._damaged(segment, str(error)) from error
        if frame is None:
            raise self._damaged(segment, f"{key} is missing")
        check_format(key, Format(format=frame.header.schema, since=frame.header.schema_since), VERSION)
        if frame.header.last != segment.tasks:
            raise self._damaged(segment, f"{key} has {frame.header.last} tasks, not {segment.tasks}")
        return frame.body

    async def delete(self, names: Sequence[str]) -> None:
        async def delete(name: str) -> None:
            await retry(lambda: self._bucket.delete(self.key(name)))

        await in_parallel(delete, names, max_concurrent=_MAX_DELETES)

    def mismatch(self, segment: ColdSegment, error: object) -> DamagedSegment:
        """The error of a segment that can be read, and whose content the tables refuse."""
        return DamagedSegment(
            f"{self.key(segment.object)} does not match the tables ({error}); see `qo doctor`, and restore an older"
            " version of the bucket"
        )

    def _damaged(self, segment: ColdSegment, problem: str) -> DamagedSegment:
        return DamagedSegment(
            f"{problem}; {segment.tasks} tasks cannot be used until an older version of this object is restored"
        )
