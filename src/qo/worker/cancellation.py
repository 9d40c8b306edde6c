"""Notices that a running task was cancelled, before the next renewal of its lease would."""

import asyncio

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import FailureKind, Status, Task, ended_because
from qo.transitions import log_stopped
from qo.worker.callbacks import CallbackThread
from qo.worker.lease_keeper import LeaseKeeper
from qo.worker.run import Run
from qo.worker.run_table import LeasedRuns

_POLL_INTERVAL = 1.0  # seconds between two reads of the running tasks
_MIN_AGE = 0.5  # seconds a handler runs before its task is read; most end sooner
_RETRY_PAUSE = 5.0  # seconds after a failed read; the renewals log the error
_MAX_PAYLOAD = 16_384  # bytes; a task with a larger payload is renewed instead of read
# If even the quickest call takes more than 2.5 ms, the store is remote and each call may cost money. The worker then
# polls less often, and finally relies on renewals only. Calls to a qo server are free. A single slow call only means
# that the machine or the store is busy, so it delays the next read by little.
_QUICKEST_FACTOR = 400
_QUICKEST_GROWTH = 1.05  # per call
_MIN_CALLS = 5  # calls before the quickest one is used; the first calls open connections
_DURATION_FACTOR, _MAX_BUSY_PAUSE = 20, 1.4  # pause after a slow call; the limit keeps the total below two seconds


class _QuickestCall:
    """The duration of the quickest recent call."""

    def __init__(self) -> None:
        self._seconds, self._calls = float("inf"), 0

    def add(self, seconds: float) -> None:
        self._seconds, self._calls = min(seconds, self._seconds * _QUICKEST_GROWTH), self._calls + 1

    @property
    def pause(self) -> float:
        """Seconds between two calls to a store with this latency; 0 while it is unknown."""
        return _QUICKEST_FACTOR * self._seconds if self._calls >= _MIN_CALLS else 0.0


class CancellationWatch:
    """Reads the tasks that this worker runs, and stops those that it no longer holds."""

    def __init__(
        self,
        engine: Engine,
        leased_runs: LeasedRuns,
        lease_keeper: LeaseKeeper,
        callbacks: CallbackThread,
        *,
        max_interval: float,  # seconds between two renewals
        clock: Clock,
    ) -> None:
        self._engine, self._leased_runs, self._lease_keeper = engine, leased_runs, lease_keeper
        self._callbacks, self._max_interval, self._clock = callbacks, max_interval, clock
        self._reads, self._renewals = _QuickestCall(), _QuickestCall()

    async def run(self) -> None:
        """Work until cancelled."""
        pause = _POLL_INTERVAL
        while True:
            await asyncio.sleep(pause)
            began_before = self._clock() - _MIN_AGE
            runs = [run for run in self._leased_runs.leased() if run.began is not None and run.began < began_before]
            try:
                pause = await self.check(runs) if runs else _POLL_INTERVAL
            except StorageError:
                pause = _RETRY_PAUSE

    async def check(self, runs: list[Run]) -> float:
        """Stop the runs whose tasks were cancelled. Returns the pause until the next check."""
        small = [run for run in runs if len(run.task.payload) <= _MAX_PAYLOAD]
        doubtful = [run for run in runs if len(run.task.payload) > _MAX_PAYLOAD]
        sent = self._clock()
        stored = await self._engine.get_without_values([run.task.id for run in small])
        if small:
            self._reads.add(self._clock() - sent)
        doubtful += [
            run for run, task in zip(small, stored, strict=True) if task is None or task.status is not Status.RUNNING
        ]
        # The renewal decides: it compares the lease.
        await self._lease_keeper.renew_now([run for run in doubtful if not run.settled])
        took = self._clock() - sent
        if not small:
            self._renewals.add(took)
        distant = 0.0 if self._engine.is_remote else (self._reads if small else self._renewals).pause
        busy = min(_MAX_BUSY_PAUSE, _DURATION_FACTOR * took)
        return min(self._max_interval, max(_POLL_INTERVAL, busy, distant))

    async def explain(self, runs: list[Run]) -> None:
        """Log why these runs were stopped, and call the callbacks of those whose tasks were cancelled."""
        try:
            stored = await self._engine.get_without_values([run.task.id for run in runs])
        except StorageError:
            stored = [None] * len(runs)
        for run, task in zip(runs, stored, strict=True):
            ran = None if run.began is None else max(0.0, (run.ended or self._clock()) - run.began)
            cancelled = task is not None and _is_cancelled(task)
            log_stopped(run.task, cancelled=cancelled, ran=ran, has_ended=not run.lost)
            if cancelled and run.began is not None:
                self._callbacks.cancelled(run, ran)


def _is_cancelled(task: Task) -> bool:
    return task.status not in (Status.PENDING, Status.RUNNING) and ended_because(task) is FailureKind.CANCELLED
