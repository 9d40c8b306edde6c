"""The engine port for the layout `one`."""

import contextlib
import sys
from collections.abc import Callable
from enum import StrEnum

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engine import Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.one_object.record import check_head, decode_head
from qo.engines.one_object.table import ObjectTable, StoredTable
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.requests import retry_opening
from qo.engines.table_engine import Answer, TableEngine
from qo.model import ClaimRequest, Filter, Task

KEY = "queue.json"
_MAX_BATCH_SIZE = 10_000  # calls in one write


class CommitMode(StrEnum):
    DIRECT = "direct"  # every call reads and writes
    GROUP = "group"  # calls share reads and writes


class OneObjectEngine(TableEngine):
    """Uses the bucket's clock unless a clock is given."""

    default_retention = 86_400.0  # seconds: every write sends the finished tasks too

    def __init__(
        self, bucket: Bucket, *, mode: CommitMode = CommitMode.GROUP, key: str = KEY, clock: Clock | None = None
    ) -> None:
        super().__init__(clock or bucket.now)
        is_group = mode is CommitMode.GROUP
        self._stored = StoredTable(bucket, key, max_batch_size=_MAX_BATCH_SIZE if is_group else 1, keeps_table=is_group)
        self._bucket, self._key = bucket, key
        self._poller = ClaimPoller(self._clock)
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Check that the bucket can be read. Nothing needs to be created."""
        blob = await retry_opening(lambda: self._bucket.get(self._key))
        if blob is not None:
            with contextlib.suppress(ValueError):  # the first call reports damage
                check_head(self._key, decode_head(blob.data))

    async def close(self) -> None:
        await self._stored.finish()
        await self._hand_backs.finish()

    async def _write(
        self, work: Callable[[ObjectTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await self._stored.call(work, abandoned)

    async def _read(self, work: Callable[[ObjectTable], Answer]) -> Answer:
        return await self._stored.call(work)

    def _wake(self) -> None:
        self._poller.wake()

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the write claims nothing; one cancelled during it hands its tasks back."""
        return await self._write(lambda table: table.claim(request, self._clock()), self._hand_backs.start)

    async def snapshot(self) -> Snapshot:
        blob = await self._bucket.get(self._key)
        table = ObjectTable(blob.data if blob else b"")
        return Snapshot(table.find(Filter(), sys.maxsize, None, self._clock()), table.version)

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        def poll(table: ObjectTable) -> PollResult:
            return PollResult(table.has_ready(request, self._clock()), table.next_at())

        await self._poller.wait(lambda: self._stored.call(poll), timeout)
