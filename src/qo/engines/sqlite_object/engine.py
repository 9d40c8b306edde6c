"""The port on one side, one of two modes on the other."""

from collections.abc import Callable
from enum import StrEnum

from qo.bucket import Bucket
from qo.clock import Clock
from qo.damage import DamageLog
from qo.engines.hand_backs import HandBacks
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.sqlite_object.durable import Durable
from qo.engines.sqlite_object.flush_timer import FlushTimer, check_interval, check_volume
from qo.engines.sqlite_object.image import Image
from qo.engines.sqlite_object.local import Local
from qo.engines.table_engine import Answer, TableEngine
from qo.model import ClaimRequest, Task
from qo.sqlite_tables.damage import BadRow, around_damage
from qo.sqlite_tables.reader import SqliteReader
from qo.sqlite_tables.table import SqliteTable

KEY = "queue.sqlite"
VOLUME = 1000  # calls that wait for no interval
PATIENCE = 30.0  # seconds


class DurabilityMode(StrEnum):
    DURABLE = "durable"  # a call returns when the bucket has it
    LOCAL = "local"  # a call returns at once


INTERVALS = {
    DurabilityMode.DURABLE: 0.0,
    DurabilityMode.LOCAL: 1.0,
}  # seconds from one flush to the next, unless told otherwise


class SqliteObjectEngine(TableEngine):
    """Time is the bucket's unless a clock is given.

    A lost race is run again on the fresh state, unless the caller wants to hear of it (`repeats_lost_races=False`).
    `patience` is how long a durable call waits for a bucket that does not answer before it is told so.
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
        patience: float = PATIENCE,
        repeats_lost_races: bool = True,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(clock or bucket.now)
        interval = check_interval(INTERVALS[mode] if interval is None else interval)
        pace = FlushTimer(interval, check_volume(volume))
        self._store: Durable | Local = (
            Local(bucket, key, self._clock, pace, interval)
            if mode is DurabilityMode.LOCAL
            else Durable(bucket, key, self._clock, pace, patience=patience, repeats_lost_races=repeats_lost_races)
        )
        self._poller = ClaimPoller(self._clock)
        self._damage_log = DamageLog()
        self._hand_backs = HandBacks(self.apply)

    @property
    def lost(self) -> int:
        """How many changes of mode `local` never reached the bucket."""
        return self._store.lost

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.finish(PATIENCE)  # which may bring forth tasks to hand back
        await self._hand_backs.finish(timeout=PATIENCE)
        self._store.close()

    async def flush(self) -> None:
        """Bring what is asked for to the bucket now."""
        await self._store.flush()

    @property
    def is_synced(self) -> bool:
        """Whether the bucket has what was answered so far."""
        return self._store.is_synced

    async def confirmed(self) -> bool:
        """Wait until the bucket has what was answered so far. False: another process's write has undone it."""
        return await self._store.confirmed()

    async def sync(self) -> None:
        """Bring every change to the bucket now, and read what it holds."""
        await self._store.sync()

    def let_go(self) -> None:
        """End what goes on in the background; for whoever cannot await `close`."""
        self._store.let_go()

    # --- the table

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the flush claims nothing; one cancelled during it hands its tasks back."""

        def work(table: SqliteTable) -> list[Task]:
            return table.claim(request, self._clock())

        return await around_damage(lambda: self._store.ask(work, self._hand_backs.start, request), self._set_aside)

    async def _write(
        self, work: Callable[[SqliteTable], Answer], abandoned: Callable[[Answer], None] | None = None
    ) -> Answer:
        return await around_damage(lambda: self._store.ask(work, abandoned), self._set_aside)

    async def _read(self, work: Callable[[SqliteReader], Answer]) -> Answer:
        return await around_damage(lambda: self._store.read(lambda image: work(image.reading)), self._set_aside)

    async def _set_aside(self, bad: list[BadRow]) -> None:
        self._damage_log.report(await self._store.ask(lambda table: table.set_aside(bad)))

    def _wake(self) -> None:
        self._poller.wake()

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        def poll(image: Image) -> PollResult:
            return PollResult(image.has_ready(request), image.next_at())

        await self._poller.wait(lambda: self._store.look(poll), timeout)
