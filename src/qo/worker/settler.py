"""Settles outcomes in batches: those reported while one batch is being written form the next."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from qo.backoff import Backoff
from qo.clock import Clock
from qo.engine import Engine
from qo.errors import ObjectTooLarge, StorageError, is_size_refusal
from qo.executors.log_capture import log_text
from qo.executors.run import Run, RunOutcome, settlement
from qo.executors.run_table import LeasedRuns
from qo.ids import random_fraction
from qo.model import Change, Status, fail, plural
from qo.transitions import Settlement, Transitions
from qo.worker.callbacks import CallbackThread
from qo.worker.registration import Registration
from qo.worker.waits import StoreCalls

log = logging.getLogger("qo.worker")
_MIN_QUICK_PREFETCH = 50  # from this prefetch size on, tasks end so quickly that waiting for a larger batch pays
_BATCH_DELAY = 0.01  # seconds; a smaller batch would cost a transaction and compete with handlers for the GIL
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.1, 5.0  # seconds between attempts while the store is unreachable


async def _ignore(_: list[Run]) -> None: ...


class Settler:
    def __init__(
        self,
        engine: Engine,
        leased_runs: LeasedRuns,
        registration: Registration,
        settled: Callable[[list[Run]], None],
        *,
        ahead: Callable[[], int],  # how many tasks the worker prefetches
        transitions: Transitions,
        callbacks: CallbackThread,
        calls: StoreCalls,
        captures_logs: bool,
        clock: Clock,
    ) -> None:
        self._engine, self._leased_runs = engine, leased_runs
        self._registration, self._settled = registration, settled
        self._ahead, self._transitions, self._callbacks, self._clock = ahead, transitions, callbacks, clock
        self._calls, self._captures_logs = calls, captures_logs
        self._loop: asyncio.AbstractEventLoop | None = None  # while `run` runs
        self._reports: deque[tuple[Run, RunOutcome]] = deque()
        self._reported = asyncio.Event()
        self._waking = False
        self.on_lost: Callable[[list[Run]], Awaitable[None]] = _ignore  # called with runs whose outcome was dropped

    def report(self, run: Run, outcome: RunOutcome) -> None:
        """Report the outcome of a run. May be called from any thread."""
        if not outcome.handed_back:
            run.ended = self._clock()
        self._reports.append((run, outcome))
        if not self._waking and self._loop is not None:
            self._waking = True
            try:
                self._loop.call_soon_threadsafe(self._reported.set)
            except RuntimeError:
                return  # an abandoned handler ended after the worker

    async def run(self) -> None:
        """Settle reported outcomes until cancelled."""
        self._loop = asyncio.get_running_loop()
        if self._reports:
            self._reported.set()
        while True:
            await self._reported.wait()
            # A worker that holds few tasks has no larger batch to wait for.
            if len(self._leased_runs) >= _MIN_QUICK_PREFETCH and self._ahead() >= _MIN_QUICK_PREFETCH:
                await asyncio.sleep(_BATCH_DELAY)
            self._reported.clear()
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
                self._leased_runs.remove(run)
                ended.append(run)
        if ended:
            self._settled(ended)
        return drained

    async def _settle(self, reports: list[tuple[Run, RunOutcome]]) -> None:
        if not reports:
            return
        changes = [self._change(run, outcome) for run, outcome in reports]
        changes, answers = await self._apply_divided([run for run, _ in reports], changes)
        settled, lost = [], []
        for (run, outcome), change, landed in zip(reports, changes, answers, strict=True):
            self._leased_runs.remove(run)
            if outcome.handed_back:
                continue
            if not landed:
                lost.append(run)
                continue
            if change.to is Status.COMPLETED:
                self._registration.completed += 1
            else:
                self._registration.failed += 1
            settled.append(Settlement(run.task, change, change.started_at or run.started_at, run.ran))
        self._transitions.settled_all(settled)
        if self._callbacks.is_used:
            for settlement_ in settled:
                self._callbacks.settled(settlement_)
        self._settled([run for run, _ in reports])
        if lost:
            await self.on_lost(lost)

    def _change(self, run: Run, outcome: RunOutcome) -> Change:
        has_log = self._captures_logs and run.log_lines
        return settlement(
            run, outcome, random_fraction, log_text(run.log_lines, run.dropped_lines) if has_log else None
        )

    async def _apply_divided(self, runs: Sequence[Run], changes: list[Change]) -> tuple[list[Change], list[bool]]:
        """Apply the changes in parts that the store accepts. Returns the changes too: one may be too large alone."""
        try:
            return changes, await self.apply(changes)
        except ObjectTooLarge as error:
            if len(changes) == 1:
                log.error("task %s: the store refuses its result or log because of its size: %s", changes[0].id, error)  # noqa: TRY400
                smaller = [_without_values(runs[0], changes[0])]
                return smaller, await self.apply(smaller)
        middle = len(changes) // 2
        first = await self._apply_divided(runs[:middle], changes[:middle])
        second = await self._apply_divided(runs[middle:], changes[middle:])
        return first[0] + second[0], first[1] + second[1]

    async def apply(self, changes: Sequence[Change]) -> list[bool]:
        """Apply the changes, retrying while the store is unreachable. Changes whose leases are lost have no effect.

        Raises ObjectTooLarge if they contain results or logs that the store refuses because of their size, and
        WorkerStuck if the store does not answer.
        """
        backoff = Backoff(_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE)
        while True:
            try:
                return await self._calls.answered("a settlement", self._engine.apply(changes))
            except StorageError as error:
                if is_size_refusal(error) and any(change.size for change in changes):
                    raise ObjectTooLarge(*error.args) from error
                pause = backoff.next()
                log.warning("cannot settle %s; retrying in %.1f s: %s", plural(len(changes)), pause, error)
            await asyncio.sleep(pause)


def _without_values(run: Run, change: Change) -> Change:
    """Replaces a change whose values cannot be stored. A task whose result is lost has failed."""
    if change.result is None:
        return replace(change, log=None)
    return fail(run.task, "result: the store refuses it because of its size", started_at=change.started_at)
