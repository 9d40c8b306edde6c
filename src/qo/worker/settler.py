"""From reports to the store: outcomes gather while a trip is under way, and are settled in one batch."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from qo.backoff import Backoff
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.ids import luck
from qo.model import Change, Status, Task
from qo.transitions import Settlement, Transitions
from qo.worker.leased_runs import LeasedRuns
from qo.worker.prefetch import Prefetch
from qo.worker.registration import Registration
from qo.worker.run import Run, RunOutcome, settlement

log = logging.getLogger("qo.worker")
_MANY = 50  # tasks worth holding ahead: above it they end so quickly that waiting for more pays
_GATHER = 0.01  # seconds. Each early trip costs a transaction, and a fight for the interpreter with the handlers
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between tries while the store is unreachable


class Settler:
    def __init__(
        self,
        engine: Engine,
        held: LeasedRuns,
        registration: Registration,
        settled: Callable[[list[Run]], None],
        *,
        pace: Prefetch,
        transitions: Transitions,
        clock: Clock,
    ) -> None:
        self._engine, self._held, self._registration, self._settled = engine, held, registration, settled
        self._pace, self._transitions, self._clock = pace, transitions, clock
        self._loop = asyncio.get_running_loop()
        self._reports: deque[tuple[Run, RunOutcome]] = deque()
        self._news = asyncio.Event()
        self._waking = False

    def report(self, run: Run, outcome: RunOutcome) -> None:
        """What came of a run. From any thread."""
        if not outcome.handed_back:
            run.ended = self._clock()
        self._reports.append((run, outcome))
        if not self._waking:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:
                return  # a handler left behind came back after the worker had ended

    async def run(self) -> None:
        while True:
            await self._news.wait()
            if self._pace.ahead() >= _MANY:
                await asyncio.sleep(_GATHER)
            self._news.clear()
            self._waking = False
            await self._settle(self._drain())

    def _drain(self) -> list[tuple[Run, RunOutcome]]:
        drained, ended = [], []
        while self._reports:
            run, outcome = self._reports.popleft()
            if not run.settled:
                run.settled = True
                drained.append((run, outcome))
            elif run.lost:
                self._held.remove(run)
                ended.append(run)
        if ended:
            self._settled(ended)
        return drained

    async def _settle(self, reports: list[tuple[Run, RunOutcome]]) -> None:
        if not reports:
            return
        changes = [settlement(run, outcome, luck) for run, outcome in reports]
        answers = await self.apply(changes)
        settled = []
        for (run, outcome), change, landed in zip(reports, changes, answers, strict=True):
            self._held.remove(run)
            if outcome.handed_back:
                continue
            if not landed:
                self._tell_dropped(run.task)
                continue
            if change.to is Status.COMPLETED:
                self._registration.completed += 1
            else:
                self._registration.failed += 1
            settled.append(Settlement(run.task, change, change.started_at or run.started_at, run.ran))
        self._transitions.settled_all(settled)
        self._settled([run for run, _ in reports])

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Apply, however long the store is unreachable: the leases tell whether it is too late."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                return await self._engine.apply(changes)
            except StorageError as error:
                pause = backoff.next()
                log.warning("cannot settle %d tasks, trying again in %.1f s: %s", len(changes), pause, error)
            await asyncio.sleep(pause)

    def _tell_dropped(self, task: Task) -> None:
        about = {"task_id": task.id, "type": task.type, "queue": task.queue, "attempt": task.attempt}
        log.warning("lease lost: the outcome of %s %s was dropped", task.type, task.id, extra=about)
