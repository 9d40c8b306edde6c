"""Keeps the leases of a worker: renews them, enforces timeouts, and stops runs whose tasks were cancelled."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.executors.executors import Executors
from qo.executors.run import HANDED_BACK, Run, timed_out
from qo.executors.run_table import LeasedRuns
from qo.model import Change, FailureKind, Status, Task, ended_because, plural, renew
from qo.transitions import log_stopped
from qo.worker.callbacks import CallbackThread
from qo.worker.claim_plan import LeaseLength
from qo.worker.settler import Settler
from qo.worker.waits import StoreCalls, WorkerStuck

log = logging.getLogger("qo.worker")
TICK = 0.1  # seconds; the precision of timeouts
CANCEL_TIMEOUT = 2.0  # seconds for a cancelled handler to end before it is abandoned
MAX_ABANDONED = 100  # threads; a worker that abandoned more must be restarted
MAX_SLOT_WAIT = 1.5  # seconds a task may wait for a slot; then it is handed back for other workers
_START_REPORT_DELAY = 1.0  # seconds a handler runs before its start is written to the store; most end sooner
_MAX_RETRY_PAUSE = 1.0  # seconds until a failed renewal is retried


async def _ignore(_: list[Run]) -> None: ...


class LeaseKeeper:
    def __init__(
        self,
        engine: Engine,
        leased_runs: LeasedRuns,
        executors: Executors,
        settler: Settler,
        *,
        lease: LeaseLength,
        calls: StoreCalls,
        clock: Clock,
    ) -> None:
        self._engine, self._leased_runs = engine, leased_runs
        self._executors, self._settler = executors, settler
        self._lease, self._calls, self._clock = lease, calls, clock
        self._none_overdue_before = float("-inf")  # no held lease expires before this time
        self.on_unstarted: Callable[[Run], None] = lambda _: None  # called with a run that got no slot in time
        self.on_dropped: Callable[[Run], None] = lambda _: None  # called with a run that has ended and is not settled
        self.on_lost: Callable[[list[Run]], Awaitable[None]] = _ignore  # called once the runs are stopped

    # --- leases

    async def renew(self) -> None:
        """Renew all leases in one batch, every third of a lease; sooner after a failed renewal.

        Raises WorkerStuck if the store does not answer.
        """
        pause = self._lease.seconds / 3
        while True:
            await asyncio.sleep(pause)
            usual = self._lease.seconds / 3
            runs = self._leased_runs.leased()
            try:
                await self._calls.answered("a renewal of leases", self._renew(runs))
                pause = usual
            except StorageError as error:
                log.warning("cannot renew %s: %s", plural(len(runs), "lease"), error)
                pause = min(_MAX_RETRY_PAUSE, usual)

    async def report_started(self) -> None:
        """Write to the store which handlers have run for a second, so that users see them as started.

        A quick task needs no such write, because its settlement contains the start.
        """
        pause = _START_REPORT_DELAY / 2
        while True:
            await asyncio.sleep(pause)
            began_before = self._clock() - _START_REPORT_DELAY
            runs = self._leased_runs.leased()
            try:
                await self._renew(
                    [run for run in runs if not run.start_reported and (run.began or began_before) < began_before]
                )
                pause = _START_REPORT_DELAY / 2
            except StorageError:
                pause = 5 * _START_REPORT_DELAY  # `renew` logs the error

    async def renew_overdue(self) -> None:
        """Renew the leases that may have expired while the store was unreachable or this process was frozen.

        Called before each claim, which could otherwise return a task whose old attempt still runs here.
        """
        now = self._clock()
        if now < self._none_overdue_before:
            return
        leased = self._leased_runs.leased()
        await self._renew([run for run in leased if run.lease_until <= now])
        # Leases claimed or renewed from now on last at least `asked` seconds.
        self._none_overdue_before = min(
            [now + self._lease.asked, *(run.lease_until for run in leased if not run.settled)]
        )

    async def _renew(self, runs: list[Run]) -> None:
        if not runs:
            return
        sent, lease = self._clock(), self._lease.seconds
        starts = [run.started_at for run in runs]
        changes = [_renewal(run, lease, at) for run, at in zip(runs, starts, strict=True)]
        answers = await self._engine.apply(changes)
        lost = []
        for run, started_at, still_held in zip(runs, starts, answers, strict=True):
            if still_held:
                run.lease_until = sent + lease
                run.start_reported = started_at is not None
            elif not run.settled:
                self.lose(run)
                lost.append(run)
        if lost:
            await self.on_lost(lost)

    async def renew_now(self, runs: list[Run]) -> None:
        """Renew these leases, and stop the runs that have lost theirs. Raises StorageError."""
        await self._renew(runs)

    def lose(self, run: Run) -> None:
        """Cancel a run whose lease is lost: the task was cancelled, or its lease expired. Its outcome is dropped.

        Until the handler has ended, the run keeps its slot and this worker does not run the task again.
        """
        if self._executors.queue.withdraw(run):
            self._drop(run)
            return
        run.settled = run.lost = True
        self._executors.cancel(run)
        if run.ended is not None:  # its report was dropped before the loss was known
            self._drop(run)

    def _drop(self, run: Run) -> None:
        self._leased_runs.remove(run)
        self.on_dropped(run)

    # --- timeouts

    async def watch(self) -> None:
        """Enforce timeouts, and release runs that do not start within MAX_SLOT_WAIT."""
        queue = self._executors.queue
        while True:
            await asyncio.sleep(TICK)
            self._executors.replace_stalled_loop()
            now = self._clock()
            for run in self._leased_runs.runs():
                if run.ends_at is not None and (run.lost or not run.settled) and now >= run.ends_at:
                    self._overdue(run, now - run.ends_at)
            for run in queue.refused():
                self._settler.report(run, HANDED_BACK)
            for run in queue.take_back(received_before=now - MAX_SLOT_WAIT):
                self.on_unstarted(run)
                self._settler.report(run, HANDED_BACK)

    def _overdue(self, run: Run, late: float) -> None:
        if not run.timed_out:
            run.timed_out = True
            self._executors.cancel(run)
        elif (bystanders := self._executors.bystanders(run)) is not None:
            self._settler.report(run, timed_out(run.time_limit, " and blocked its event loop"))
            for other in bystanders:
                self._settler.report(other, HANDED_BACK)
        elif late >= CANCEL_TIMEOUT and not self._executors.is_blocking(run):
            self._executors.abandon(run)
            if (abandoned := self._executors.abandoned) > MAX_ABANDONED:
                raise WorkerStuck(f"{abandoned} handlers did not stop at their timeout; restart the worker")
            self._settler.report(run, timed_out(run.time_limit, " and ignored its cancellation"))


def _renewal(run: Run, lease: float, started_at: float | None) -> Change:
    share, text = run.progress or (None, None)
    return renew(run.task, lease, started_at=started_at, progress=share, progress_text=text)


# --- cancelled tasks

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
