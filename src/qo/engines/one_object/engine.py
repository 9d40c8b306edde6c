"""The port on one side, a state and its commits on the other."""

import contextlib
import sys
from collections.abc import Sequence
from enum import StrEnum

from qo.bucket import Bucket
from qo.clock import Clock
from qo.engine import Engine, Snapshot
from qo.engines.hand_backs import HandBacks
from qo.engines.one_object.commit_loop import CommitLoop
from qo.engines.one_object.record import check_head, decode_head
from qo.engines.one_object.state import State
from qo.engines.polling import ClaimPoller, PollResult
from qo.engines.retry import retry_opening
from qo.model import (
    Added,
    Change,
    ClaimRequest,
    Counts,
    Event,
    Filter,
    NewTask,
    Note,
    Status,
    Task,
    check_distinct,
    page_start,
)

KEY = "queue.json"
_MOST = 10_000  # calls in one write


class CommitMode(StrEnum):
    DIRECT = "direct"  # every call reads and writes
    GROUP = "group"  # calls share reads and writes


class OneObjectEngine(Engine):
    """Time is the bucket's unless a clock is given."""

    default_retention = 86_400.0  # seconds: every write sends the finished tasks too

    def __init__(
        self, bucket: Bucket, *, mode: CommitMode = CommitMode.GROUP, key: str = KEY, clock: Clock | None = None
    ) -> None:
        together = mode is CommitMode.GROUP
        self._committing = CommitLoop(bucket, key, most=_MOST if together else 1, keeps_state=together)
        self._clock = clock or bucket.now
        self._bucket, self._key = bucket, key
        self._poller = ClaimPoller(self._clock)
        self._hand_backs = HandBacks(self.apply)

    async def open(self) -> None:
        """Nothing to create: the first write does. But a bucket that cannot be read says so here."""
        blob = await retry_opening(lambda: self._bucket.get(self._key))
        if blob is not None:
            with contextlib.suppress(ValueError):  # the first call says what is wrong
                check_head(self._key, decode_head(blob.data))

    async def close(self) -> None:
        await self._committing.finish()
        await self._hand_backs.finish()

    # --- writing

    async def add(self, tasks: Sequence[NewTask]) -> list[Added]:
        check_distinct(task.id for task in tasks)
        added = await self._committing.ask(lambda state: state.add(tasks, self._clock()))
        self._poller.wake()
        return added

    async def claim(self, request: ClaimRequest) -> list[Task]:
        """A caller cancelled before the write claims nothing; one cancelled during it hands its tasks back."""
        return await self._committing.ask(lambda state: state.claim(request, self._clock()), self._hand_backs.start)

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        check_distinct(change.id for change in changes)
        applied = await self._committing.ask(lambda state: state.apply(changes, self._clock()))
        if any(change.to is Status.PENDING for change in changes):
            self._poller.wake()
        return applied

    async def delete(self, ids: Sequence[str]) -> list[bool]:
        check_distinct(ids)
        return await self._committing.ask(lambda state: state.delete(ids))

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Task | None]:
        return await self._committing.ask(lambda state: state.get(ids))

    async def find(
        self, where: Filter, *, limit: int, after: str = "", created_before: float | None = None
    ) -> list[Task]:
        start = page_start(after, created_before)
        return await self._committing.ask(lambda state: state.find(where, limit=limit, start=start, now=self._clock()))

    async def snapshot(self) -> Snapshot:
        blob = await self._bucket.get(self._key)
        state = State(blob.data if blob else b"")
        return Snapshot(state.find(Filter(), limit=sys.maxsize, start=None, now=await self.now()), state.version)

    async def count(self) -> Counts:
        return await self._committing.ask(State.count)

    async def history(self, task_id: str) -> list[Event]:
        return await self._committing.ask(lambda state: state.history(task_id))

    async def wait(self, request: ClaimRequest, timeout: float) -> None:
        def poll(state: State) -> PollResult:
            return PollResult(state.has_something_for(request, self._clock()), state.next_at())

        await self._poller.wait(lambda: self._committing.ask(poll), timeout)

    # --- notes

    async def now(self) -> float:
        return self._clock()

    async def read_note(self, name: str) -> Note | None:
        return await self._committing.ask(lambda state: state.read_note(name))

    async def write_note(self, name: str, data: bytes, *, expected: str) -> str:
        return await self._committing.ask(lambda state: state.write_note(name, data, expected))

    async def notes(self, prefix: str) -> list[Note]:
        return await self._committing.ask(lambda state: state.notes(prefix))

    async def drop_note(self, name: str) -> None:
        await self._committing.ask(lambda state: state.drop_note(name))
