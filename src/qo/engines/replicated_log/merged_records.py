"""Merged records: one object with the effect of a range of records, for new processes and replicas that are far behind.

A block of level k is an aligned range of `size ** k` numbers; the first one begins with number 1. The compactor also
writes the range from an image to the end of its block.
"""

from collections.abc import Iterable
from typing import NamedTuple

from qo.bucket import Bucket
from qo.engines.replicated_log.frame import create_frame, get_frame
from qo.engines.replicated_log.keys import merged_key, merged_prefix, parse_key
from qo.engines.replicated_log.record_store import LogRecord
from qo.engines.replicated_log.runner import Runner, run_inline
from qo.engines.requests import retry

BLOCK_SIZE = 64  # records
MAX_LEVEL = 4
_MAX_SIZE = BLOCK_SIZE**MAX_LEVEL  # of a range; no build writes a wider one, so it is a foreign object


class MergedRange(NamedTuple):
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


def block_of(seq: int, size: int, level: int = 1) -> MergedRange:
    """The block that contains a number."""
    width: int = size**level
    start = seq // width * width
    return MergedRange(max(1, start), start + width - 1)


def chosen(position: int, ranges: Iterable[MergedRange]) -> list[MergedRange]:
    """The ranges to apply in this order after `position`, each as long as possible."""
    longest: dict[int, int] = {}
    for first, last in ranges:
        longest[first] = max(last, longest.get(first, 0))
    path: list[MergedRange] = []
    while (last := longest.get(position + 1, 0)) > position:
        path.append(MergedRange(position + 1, last))
        position = last
    return path


class MergedRecords:
    def __init__(self, bucket: Bucket, log: str, shard: int, run: Runner = run_inline) -> None:
        """`run` encodes and decodes large records."""
        self._bucket, self._log, self._shard, self._run = bucket, log, shard, run

    def key(self, merged: MergedRange) -> str:
        return merged_key(self._log, self._shard, merged.first, merged.last)

    async def ranges(self, after: int = 0) -> list[MergedRange]:
        """The stored ranges that begin after a number."""
        return await retry(lambda: self._list(after))

    async def _list(self, after: int) -> list[MergedRange]:
        prefix = merged_prefix(self._log, self._shard)
        names = [parse_key(key) async for key in self._bucket.keys(prefix, after=f"{prefix}{after + 1:016x}")]
        found = [MergedRange(name.first, name.last) for name in names if name is not None and name.last is not None]
        return [merged for merged in found if 0 < merged.size <= _MAX_SIZE]

    async def get(self, merged: MergedRange) -> LogRecord | None:
        """None if it does not exist. Raises DamagedFrame."""
        frame = await get_frame(self._bucket, self.key(merged), self._run)
        return frame and LogRecord(frame.header, frame.body)

    async def create(self, record: LogRecord) -> None:
        """Raises Conflict if the range is already merged."""
        header = record.header
        key = self.key(MergedRange(header.first, header.last))
        await create_frame(self._bucket, key, header, record.patchset, self._run)
