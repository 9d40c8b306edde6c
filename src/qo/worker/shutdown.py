"""Stops a worker: decides when a draining one is done, lets running tasks finish, and hands back all others."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from qo.clock import Clock, iso
from qo.engine import Engine
from qo.errors import StorageError
from qo.executors.executors import Executors
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns
from qo.fleet_limits.limit_gate import LimitGate
from qo.handled_types import find_unhandled
from qo.model import FILLS_RESULTS, ClaimRequest, Filter, PendingKind, Status, plural, release
from qo.pending_counts import count_pending
from qo.worker.controls import ClaimScope
from qo.worker.registration import Registration
from qo.worker.settings import WorkerSettings
from qo.worker.settler import Settler
from qo.worker.unknown_types import UnknownTypes
from qo.worker.waits import StopSignal, abandon, bounded, first

log = logging.getLogger("qo.worker")
_MAX_LEFT_READ = 100  # tasks of one type that are read to report why a drain leaves them
_HAND_BACK_TIMEOUT = 3.0  # seconds for handing back the remaining tasks after the grace period
_ABORT_TIMEOUT = 2.0  # seconds for handing them back after an abort


class DrainCheck:
    """Decides when a draining worker is done, and describes the tasks it leaves."""

    def __init__(
        self, engine: Engine, scope: ClaimScope, unknown_types: UnknownTypes, clock: Clock, settings: WorkerSettings
    ) -> None:
        self._engine, self._scope, self._unknown_types = engine, scope, unknown_types
        self._clock, self._shards, self._capabilities = clock, settings.shards, settings.capabilities

    async def has_more_to_fail(self) -> bool:
        """Check for tasks of unknown types, and return True if the worker is about to fail some of them."""
        return await self._unknown_types.has_more_to_fail()

    async def waits_for_limits(self, gate: LimitGate) -> bool:
        """Whether tasks of this worker are waiting for a fleet limit."""
        if gate.has_delayed:
            return True
        if not gate.is_blocking:
            return False
        ready = Filter(
            types=self._scope.types, queues=self._scope.queues, statuses=(Status.PENDING,), pending=(PendingKind.READY,)
        )
        return bool(await self._engine.find_without_values(replace(ready, shards=self._shards), limit=1))

    async def is_over(self, request: ClaimRequest) -> bool:
        """Whether nothing is left to wait for after a claim for `request` returned no task.

        The worker waits for pending retries, for tasks with expired leases, and for tasks of types that `request` omits
        because they are out of tokens.
        """
        ours = Filter(types=request.types, queues=request.queues, shards=self._shards)
        if await self._engine.find(replace(ours, statuses=(Status.PENDING,), retrying=True), limit=1):
            return False
        if await self._engine.find(replace(ours, expired_for=0.0), limit=1):
            return False
        limited = tuple(set(self._scope.types) - set(request.types))
        waiting = replace(ours, types=limited, statuses=(Status.PENDING,))
        return not limited or not await self._engine.find(waiting, limit=1)

    async def _why_pending(self, queue: str, type: str, kind: PendingKind) -> str:
        """Why the worker left pending tasks of this kind that it has a handler for."""
        where = Filter(statuses=(Status.PENDING,), pending=(kind,), queues=(queue,), types=(type,))
        found = await self._engine.find_without_values(where, limit=_MAX_LEFT_READ)
        if kind is PendingKind.BLOCKED:
            return "waiting for other tasks of their workflows"
        if kind is not PendingKind.READY:
            first = min((task.available_at for task in found), default=None)
            at = "" if first is None or len(found) == _MAX_LEFT_READ else f", the first at {iso(first)}"
            return f"{kind}{at}"
        missing = {need for task in found for need in task.needs} - {FILLS_RESULTS, *self._capabilities}
        return f"needs {', '.join(sorted(missing))}" if missing else "for other workers"

    async def left(self) -> str:
        """The tasks left in this worker's queues and the reasons, as text; empty if there are none."""
        left: Counter[tuple[str, str]] = Counter()
        counts = await self._engine.count()
        unhandled = await find_unhandled(self._engine, self._clock(), counts=counts)
        for lane, number in counts.items():
            if number > 0 and lane.status is Status.RUNNING and self._scope.serves(lane.queue):
                left[lane.type, "running elsewhere"] += number
        pending = await count_pending(self._engine, counts, self._clock())
        for (queue, type_), kinds in pending.by_lane.items():
            if self._scope.serves(queue):
                why = self._scope.why_not(queue, type_, is_handled=(queue, type_) not in unhandled)
                for kind, number in kinds.items():
                    if number:
                        left[type_, why or await self._why_pending(queue, type_, kind)] += number
        return ", ".join(f"{number} {type} ({why})" for (type, why), number in sorted(left.items()))


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
