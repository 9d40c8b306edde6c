"""What everything a queue does stands on: an engine, opened and closed, and trips that concurrent callers share."""

from types import TracebackType
from typing import Self

from qo.client.describe import Settings
from qo.client.live_types import LiveTypes
from qo.client.recovery import LeaseExpiry
from qo.client.switches import Switches
from qo.clock import Clock, monotonic_clock, system_clock, unset_clock
from qo.engine import Engine
from qo.group_commit import GroupCommit
from qo.ids import new_worker_id
from qo.model import Added, Change, NewTask, Task
from qo.stats import StatsRecorder
from qo.transitions import Transitions


class Opened:
    def __init__(self, engine: Engine, settings: Settings | None = None, *, clock: Clock = system_clock) -> None:
        self.engine = engine
        self.switches = Switches(engine)
        self.live_types = LiveTypes(engine)
        self.settings = settings or Settings()
        self._clock = clock
        self.recorder = StatsRecorder(engine, clock=clock)
        self.transitions = Transitions(self.recorder, clock=clock)
        self._expiry = LeaseExpiry(engine, self.transitions, unset_clock(clock, monotonic_clock))
        self._worker_id = new_worker_id("dequeue")
        self.held: dict[str, Task] = {}  # dequeued here and not settled, by id
        self._adding: GroupCommit[NewTask, Added] = GroupCommit(engine.add)
        self._applying: GroupCommit[Change, bool] = GroupCommit(engine.apply)

    @property
    def payload_limit(self) -> int:
        """The most bytes of one payload or result: of the settings, or else of the store."""
        return self.settings.payload_limit or self.engine.payload_limit

    async def open(self) -> Self:
        try:
            await self.engine.open()
        except BaseException:
            await self.engine.close()  # nobody else would: `async with` does not end what did not begin
            raise
        return self

    async def close(self) -> None:
        await self.live_types.finish()
        await self._adding.finish()
        await self._applying.finish()
        await self.recorder.close()
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
