"""Stops a worker: no more claims, running tasks get the grace period, and all others are handed back."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from qo.clock import Clock
from qo.errors import StorageError
from qo.model import plural, release
from qo.worker.executors import Executors
from qo.worker.registration import Registration
from qo.worker.run import Run
from qo.worker.run_table import LeasedRuns
from qo.worker.settler import Settler
from qo.worker.store_calls import abandon, bounded, first

log = logging.getLogger("qo.worker")
_HAND_BACK_TIMEOUT = 3.0  # seconds for handing back the remaining tasks after the grace period
_ABORT_TIMEOUT = 2.0  # seconds for handing them back after an abort


class StopSignal:
    """The requests to stop and to abort.

    `wake` is set with each of them, so that the claim loop sees it immediately.
    """

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def abort(self) -> None:
        self.stop()
        self._aborting.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_aborting(self) -> bool:
        return self._aborting.is_set()

    async def aborted(self) -> None:
        """Wait for an abort."""
        await self._aborting.wait()

    async def limit(self, work: Coroutine[Any, Any, None], timeout: float) -> None:
        """Await `work`. After a stop wait at most `timeout` more seconds, after an abort not at all."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._wait_after_stop(timeout))
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            abandon([working, stopped])

    async def _wait_after_stop(self, timeout: float) -> None:
        await self._stopping.wait()
        await bounded(self.aborted(), timeout)


class Shutdown:
    """Shuts a worker down after the request to stop."""

    def __init__(
        self,
        signal: StopSignal,
        leased_runs: LeasedRuns,
        executors: Executors,
        settler: Settler,
        registration: Registration,
        *,
        announce: Callable[[], Coroutine[Any, Any, None]],
        changed: asyncio.Event,  # set whenever runs were settled
        grace: float,
        clock: Clock,
    ) -> None:
        self._signal, self._leased_runs, self._executors, self._settler = signal, leased_runs, executors, settler
        self._registration, self._announce, self._changed = registration, announce, changed
        self._grace, self._clock = grace, clock

    async def finish(self) -> None:
        """Release tasks that have not started, wait for running ones, release those that do not end in time.

        If the store does not answer, this takes at most the grace period and `_HAND_BACK_TIMEOUT`.
        """
        self._registration.status = "draining"
        calls = [
            asyncio.create_task(self._announce()),
            asyncio.create_task(self._hand_back(self._executors.take_unstarted())),
        ]
        await self._wait_for_runs()
        unfinished = self._leased_runs.leased()
        for run in unfinished:
            run.settled = True
            self._executors.cancel(run)
        calls.append(asyncio.create_task(self._hand_back(unfinished)))
        timeout = _ABORT_TIMEOUT if self._signal.is_aborting else _HAND_BACK_TIMEOUT
        if not await bounded(self._leave(calls), timeout):
            log.warning("the store does not answer: tasks that were not handed back run again when their leases expire")
        abandon(calls)

    async def _leave(self, calls: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*calls)
        with contextlib.suppress(StorageError):
            await self._registration.leave()

    async def _wait_for_runs(self) -> None:
        """Wait until no run is left, the grace period has ended, or the worker is aborted."""
        until = self._clock() + self._grace
        while len(self._leased_runs) and not self._signal.is_aborting and (left := until - self._clock()) > 0:
            self._changed.clear()
            await first([self._changed.wait(), self._signal.aborted()], left)

    async def _hand_back(self, runs: list[Run]) -> None:
        for run in runs:
            run.settled = True
        if runs:
            log.info("handing back %s", plural(len(runs)))
            await self._settler.apply([release(run.task, None) for run in runs])
        for run in runs:
            self._leased_runs.remove(run)
        self._changed.set()
