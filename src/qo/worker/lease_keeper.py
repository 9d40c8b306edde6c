"""What must happen on time whatever handlers do: leases renewed, time limits kept, blocked loops left behind."""

import asyncio
import logging

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import renew
from qo.worker.executors import Executors
from qo.worker.lease_length import LeaseLength
from qo.worker.leased_runs import LeasedRuns
from qo.worker.run import HANDED_BACK, Run, RunOutcome, timed_out
from qo.worker.settler import Settler

log = logging.getLogger("qo.worker")
TICK = 0.1  # seconds: how exactly time limits are kept
HEED = 2.0  # seconds a cancelled handler has to end before it is left behind
LONGEST_WAIT = 1.5  # seconds a task may wait here for a slot; then another worker may be faster
_TELL_AFTER = 1.0  # seconds a handler runs before the store is told that it has started; most end sooner
_SOON = 1.0  # seconds, at most, until a renewal that failed is tried again


class LeaseKeeper:
    def __init__(
        self,
        engine: Engine,
        held: LeasedRuns,
        executors: Executors,
        settler: Settler,
        *,
        lease: LeaseLength,
        clock: Clock,
    ) -> None:
        self._engine, self._held, self._executors, self._settler = engine, held, executors, settler
        self._lease, self._clock = lease, clock
        self._none_overdue_before = float("-inf")  # no lease that is held ends before this instant

    # --- leases

    async def renew(self) -> None:
        """Renew every lease in one batch, at a third of its time; soon again if the store was away."""
        pause = self._lease.seconds / 3
        while True:
            await asyncio.sleep(pause)
            usual = self._lease.seconds / 3
            runs = self._held.leased()
            try:
                await self._renew(runs)
                pause = usual
            except StorageError as error:
                log.warning("cannot renew %d leases: %s", len(runs), error)
                pause = min(_SOON, usual)

    async def tell_started(self) -> None:
        """Tell the store which handlers have run for a while, so that everyone sees them as started.

        A quick task needs no such write: its settlement says when its handler began.
        """
        pause = _TELL_AFTER / 2
        while True:
            await asyncio.sleep(pause)
            began_before = self._clock() - _TELL_AFTER
            runs = self._held.leased()
            try:
                await self._renew([run for run in runs if not run.told and (run.began or began_before) < began_before])
                pause = _TELL_AFTER / 2
            except StorageError:
                pause = 5 * _TELL_AFTER  # `renew` says so

    async def renew_overdue(self) -> None:
        """Renew what may have been lost while the store was away or this process was frozen.

        Before the next claim: it could give this worker its own task again while the old attempt still runs.
        """
        now = self._clock()
        if now < self._none_overdue_before:
            return
        leased = self._held.leased()
        await self._renew([run for run in leased if run.lease_until <= now])
        # What is claimed or renewed from here on is held for as long as was asked, at least.
        self._none_overdue_before = min(
            [now + self._lease.asked, *(run.lease_until for run in leased if not run.settled)]
        )

    async def _renew(self, runs: list[Run]) -> None:
        if not runs:
            return
        sent, lease = self._clock(), self._lease.seconds
        starts = [run.started_at for run in runs]
        changes = [renew(run.task, lease, started_at=at) for run, at in zip(runs, starts, strict=True)]
        answers = await self._engine.apply(changes)
        for run, started_at, still_held in zip(runs, starts, answers, strict=True):
            if still_held:
                run.lease_until = sent + lease
                run.told = started_at is not None
            elif not run.settled:
                self.lose(run)

    def lose(self, run: Run) -> None:
        """Cancelled by someone, or taken for dead: whatever the handler still does, it no longer counts.

        The run keeps its slot, and this worker does not run the task again, until the handler has ended.
        """
        log.warning("lease lost: %s %s is stopped", run.task.type, run.task.id, extra={"task_id": run.task.id})
        if self._executors.queue.withdraw(run):
            self._held.remove(run)
            return
        run.settled = run.lost = True
        self._executors.cancel(run)
        if run.ended is not None:  # its report was dropped before it was known to be lost
            self._held.remove(run)

    # --- time

    async def watch(self) -> None:
        """Keep time limits, and hand back what does not start."""
        queue = self._executors.queue
        while True:
            await asyncio.sleep(TICK)
            self._executors.sidestep()
            now = self._clock()
            for run in self._held.runs():
                if run.ends_at is not None and (run.lost or not run.settled) and now >= run.ends_at:
                    self._overdue(run, now - run.ends_at)
            for run in queue.refused() + queue.take_back(received_before=now - LONGEST_WAIT):
                self._settler.report(run, HANDED_BACK)

    def _overdue(self, run: Run, late: float) -> None:
        if not run.timed_out:
            run.timed_out = True
            self._executors.cancel(run)
        elif (innocent := self._executors.innocent(run)) is not None:
            self._settler.report(run, RunOutcome(error=f"{timed_out(run.time_limit)}, blocking its event loop"))
            for other in innocent:
                self._settler.report(other, HANDED_BACK)
        elif late >= HEED:
            self._executors.disown(run)
            self._settler.report(run, RunOutcome(error=f"{timed_out(run.time_limit)} and did not stop when told to"))
