"""Chooses the length of leases, renews them, enforces timeouts and replaces blocked event loops."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Change, plural, renew
from qo.worker.executors import Executors
from qo.worker.run import HANDED_BACK, Run, timed_out
from qo.worker.run_table import LeasedRuns
from qo.worker.settler import Settler

log = logging.getLogger("qo.worker")
TICK = 0.1  # seconds; the precision of timeouts
CANCEL_TIMEOUT = 2.0  # seconds for a cancelled handler to end before it is abandoned
MAX_SLOT_WAIT = 1.5  # seconds a task may wait for a slot; then it is handed back for other workers
_START_REPORT_DELAY = 1.0  # seconds a handler runs before its start is written to the store; most end sooner
_MAX_RETRY_PAUSE = 1.0  # seconds until a failed renewal is retried
_CLAIM_FACTOR = 4  # a lease lasts this many claims, to receive the tasks and to renew their leases in time
_MAX_LENGTH = 60.0  # seconds; a slower store counts as unreachable
_DECAY = 0.98  # per claim; slow, because a claim that returns nothing is quick and does not predict the next one


class LeaseLength:
    """The length of a worker's leases: as configured, or longer if the store is slow.

    A task starts only under a lease that has not expired, counted from the moment its claim was sent. If a claim took
    longer than a lease, the worker would release every task.
    """

    def __init__(self, asked: float) -> None:
        self.asked = self._needed = asked
        self._has_warned = False

    @property
    def seconds(self) -> float:
        return max(self.asked, self._needed)

    def claimed(self, took: float) -> None:
        """Adapt to a claim that took `took` seconds."""
        self._needed = max(min(_MAX_LENGTH, _CLAIM_FACTOR * took), _DECAY * self._needed)
        if self._needed > self.asked and took > self.asked / 2 and not self._has_warned:
            self._has_warned = True
            log.warning(
                "a claim takes %.1f s, too long for leases of %g s: using leases of %.1f s",
                took,
                self.asked,
                self.seconds,
            )


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
        clock: Clock,
    ) -> None:
        self._engine, self._leased_runs = engine, leased_runs
        self._executors, self._settler = executors, settler
        self._lease, self._clock = lease, clock
        self._none_overdue_before = float("-inf")  # no held lease expires before this time
        self.on_unstarted: Callable[[Run], None] = lambda _: None  # called with a run that got no slot in time
        self.on_dropped: Callable[[Run], None] = lambda _: None  # called with a run that has ended and is not settled
        self.on_lost: Callable[[list[Run]], Awaitable[None]] = _ignore  # called once the runs are stopped

    # --- leases

    async def renew(self) -> None:
        """Renew all leases in one batch, every third of a lease; sooner after a failed renewal."""
        pause = self._lease.seconds / 3
        while True:
            await asyncio.sleep(pause)
            usual = self._lease.seconds / 3
            runs = self._leased_runs.leased()
            try:
                await self._renew(runs)
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
        elif late >= CANCEL_TIMEOUT:
            self._executors.abandon(run)
            self._settler.report(run, timed_out(run.time_limit, " and ignored its cancellation"))


def _renewal(run: Run, lease: float, started_at: float | None) -> Change:
    share, text = run.progress or (None, None)
    return renew(run.task, lease, started_at=started_at, progress=share, progress_text=text)
