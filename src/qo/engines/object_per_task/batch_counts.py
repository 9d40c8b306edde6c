"""Counts of batches. The index of this layout has no batches, so a count reads every task, and callers share it."""

import asyncio
from collections import Counter

from qo.engines.object_per_task.finder import TaskFinder
from qo.errors import StorageError
from qo.model import CountKey, Counts, count_key


class _SharedScan:
    """One pass over all tasks, for the batches that callers named before it began."""

    def __init__(self) -> None:
        self.batches: set[str] = set()
        self.counts: dict[str, Counter[CountKey]] | None = None
        self.error: StorageError | None = None


class BatchCounts:
    """One scan runs at a time. A call that comes during a scan joins the next one, so its count is never too old."""

    def __init__(self, listing: TaskFinder) -> None:
        self._listing = listing
        self._lock = asyncio.Lock()
        self._next = _SharedScan()

    async def count(self, batch: str) -> Counts:
        scan = self._next
        scan.batches.add(batch)
        async with self._lock:
            if scan.counts is None:
                scan.counts = await self._run(scan)
        if scan.error is not None:
            raise scan.error
        return dict(scan.counts[batch])

    async def _run(self, scan: _SharedScan) -> dict[str, Counter[CountKey]]:
        """If the caller is cancelled, the next caller of the scan starts it again."""
        await asyncio.sleep(0)  # calls that were made together with this one join
        if self._next is scan:
            self._next = _SharedScan()
        counts: dict[str, Counter[CountKey]] = {batch: Counter() for batch in scan.batches}
        try:
            async for tasks in self._listing.scan():
                for task in tasks:
                    if task.batch in counts:
                        counts[task.batch][count_key(task)] += 1
        except StorageError as error:
            scan.error = error
        return counts
