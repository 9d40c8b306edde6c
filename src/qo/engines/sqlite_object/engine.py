"""The engine port for the layout `sqlite`, in one of two modes."""

from collections.abc import Callable
from enum import StrEnum

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import DamageLog
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.sqlite_object.durable import DurableMode
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.local import LocalMode
from qo.engines.sqlite_object.stored_image import FlushTimer, check_interval, check_volume
from qo.engines.table_engine import Answer, TableEngine
from qo.errors import StorageError
from qo.model import ClaimRequest, Task, plural
from qo.reports import Finding
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.rows import BadRow, around_damage
from qo.sqlite_tables.table import SqliteTable

KEY = "queue.sqlite"
VOLUME = 1000  # waiting calls that start a flush before the interval has passed
RETRY_TIMEOUT = 30.0  # seconds
_CLOSE_TIMEOUT = 30.0
_LARGE_DATABASE = 64 * 1024 * 1024  # bytes, which every write sends


class DurabilityMode(StrEnum):
    DURABLE = "durable"  # a call returns when the bucket has its changes
    LOCAL = "local"  # a call returns immediately, and its changes are flushed later


# Seconds between flushes, by default.
INTERVALS = {DurabilityMode.DURABLE: 0.0, DurabilityMode.LOCAL: 1.0}


class SqliteObjectEngine(TableEngine):
    """Uses the bucket's clock unless a clock is given.

    If another process writes first, a durable call is repeated on the new content, or with `retries_conflicts=False`
    raises Conflict. A durable call retries for `retry_timeout` seconds while the bucket does not respond.
    """

    default_retention = 86_400.0  # seconds: every write sends the finished tasks too

    def __init__(
        self,
        bucket: Bucket,
        *,
        mode: DurabilityMode = DurabilityMode.DURABLE,
        key: str = KEY,
        interval: float | None = None,
        volume: float = VOLUME,
        retry_timeout: float = RETRY_TIMEOUT,
        retries_conflicts: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock or bucket.now)
        interval = check_interval(INTERVALS[mode] if interval is None else interval)
        timer = FlushTimer(interval, check_volume(volume))
        self._store: DurableMode | LocalMode = (
            LocalMode(bucket, key, self._clock, timer, interval)
            if mode is DurabilityMode.LOCAL
            else DurableMode(
                bucket, key, self._clock, timer, retry_timeout=retry_timeout, retries_conflicts=retries_conflicts
            )
        )
        # A registration would prolong the ownership of a local store. Without retries, it would fail calls of other
        # processes.
        self._registers_consumers = mode is DurabilityMode.DURABLE and retries_conflicts
        self._poller = ClaimPoller(self._clock)
        self._damage_log = DamageLog()
        self._hand_backs = HandBacks(self.apply)

    @property
    def registers_consumers(self) -> bool:
        return self._registers_consumers

    @property
    def lost(self) -> int:
        """The number of changes in mode `local` that never reached the bucket."""
        return self._store.lost

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.finish(_CLOSE_TIMEOUT)  # may leave tasks to release
        await self._hand_backs.finish(timeout=_CLOSE_TIMEOUT)
        self._store.close()

    async def flush(self) -> None:
        """Write every change to the bucket now."""
        await self._store.flush()

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has every acknowledged change."""
        return self._store.is_synced

    async def confirmed(self) -> bool:
        """Wait until the bucket has every acknowledged change. False: another process's write has discarded them."""
        return await self._store.confirmed()

    async def sync(self) -> None:
        """Write every change to the bucket now, and read its content."""
        await self._store.sync()

    def abandon(self) -> None:
        """Stop the background tasks without waiting. For callers that cannot await `close`."""
        self._store.abandon()

    # --- the table

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the flush claims nothing; one cancelled during it hands its tasks back."""

        def work(table: SqliteTable) -> list[Task]:
            return table.claim(request, self._clock())

        return await around_damage(lambda: self._store.call(work, self._hand_backs.start, request), self._set_aside)

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await around_damage(lambda: self._store.call(work, abandoned), self._set_aside)

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await around_damage(lambda: self._store.read(lambda image: work(image.reader)), self._set_aside)

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._store.call(lambda table: table.set_aside(bad)))

    def _wake(self) -> None:
        self._poller.wake()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        def poll(image: Image) -> PollResult:
            return PollResult(image.has_ready(request), image.next_at())

        await self._poller.wait(lambda: self._store.read_latest(poll), timeout)


async def examine(bucket: Bucket) -> Finding:
    try:
        blob = await bucket.get(KEY)
        if blob is None:
            return Finding("database", True, f"there is no {KEY} yet; the first task creates it")
        image = Image(KEY, blob.data, bucket.now)
    except StorageError as error:
        return Finding("database", False, str(error))
    number = sum(image.reader.count().values())
    image.close()
    summary = f"{KEY} holds {plural(number)} in {len(blob.data) / 1e6:,.1f} MB"
    if len(blob.data) > _LARGE_DATABASE:
        return Finding(
            "database", None, f"{summary}, and every write sends all of it; delete old tasks, or use the layout `tasks`"
        )
    return Finding("database", True, summary)
