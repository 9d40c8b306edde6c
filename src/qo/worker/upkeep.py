"""What must happen on time whatever handlers do: leases renewed, time limits kept, blocked loops left behind."""

import asyncio
import logging

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.model import Change, release, renew
from qo.worker.executors import Executors
from qo.worker.held import Held
from qo.worker.run import Outcome, Run, timed_out
from qo.worker.settling import Settler

log = logging.getLogger("qo.worker")
TICK = 0.1  # seconds: how exactly time limits are kept
HEED = 2.0  # seconds a cancelled handler has to end before it is left behind


class Upkeep:
    def __init__(
        self, engine: Engine, held: Held, executors: Executors, settler: Settler, *, lease: float, clock: Clock
    ) -> None:
        self._engine, self._held, self._executors, self._settler = engine, held, executors, settler
        self._lease, self._clock = lease, clock

    async def renew(self) -> None:
        """Renew every lease in one batch, at a third of its time."""
        while True:
            await asyncio.sleep(self._lease / 3)
            runs = [run for run in self._held.runs() if not run.settled]
            if not runs:
                continue
            try:
                answers = await self._engine.apply([renew(run.task, self._lease) for run in runs])
            except StorageError as error:
                log.warning("cannot renew %d leases: %s", len(runs), error)
                continue
            for run, still_held in zip(runs, answers, strict=True):
                if not still_held and not run.settled:
                    self._lost(run)

    def _lost(self, run: Run) -> None:
        """Cancelled by someone, or taken for dead: whatever the handler still does, it no longer counts."""
        log.warning("lease lost: %s %s is stopped", run.task.type, run.task.id, extra={"task_id": run.task.id})
        run.settled = True
        self._executors.cancel(run)
        self._held.remove(run)

    async def watch(self) -> None:
        """Keep time limits."""
        while True:
            await asyncio.sleep(TICK)
            self._executors.sidestep()
            now = self._clock()
            for run in self._held.runs():
                if run.ends_at is not None and not run.settled and now >= run.ends_at:
                    await self._overdue(run, now - run.ends_at)

    async def _overdue(self, run: Run, late: float) -> None:
        if not run.timed_out:
            run.timed_out = True
            self._executors.cancel(run)
        elif (innocent := self._executors.innocent(run)) is not None:
            self._settler.report(run, Outcome(error=f"{timed_out(run.task.time_limit)}, blocking its event loop"))
            await self._hand_back(innocent)
        elif late >= HEED:
            self._executors.disown(run)
            self._settler.report(run, Outcome(error=f"{timed_out(run.task.time_limit)} and did not stop when told to"))

    async def _hand_back(self, runs: list[Run]) -> None:
        changes: list[Change] = []
        for run in runs:
            if not run.settled:
                run.settled = True
                changes.append(release(run.task))
        await self._settler.apply(changes)
        for run in runs:
            self._held.remove(run)
