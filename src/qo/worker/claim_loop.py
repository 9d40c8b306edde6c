"""The claim loop of a worker: it claims tasks, hands them to executors, and waits while there is nothing to claim."""

import asyncio
import contextlib
import logging
from functools import partial

from msgspec.structs import replace

from qo.clock import Clock
from qo.engine import Engine
from qo.errors import StorageError
from qo.executors.executors import Executors
from qo.executors.run import HANDED_BACK, Run, RunOutcome
from qo.executors.run_table import LeasedRuns
from qo.fleet_limits.limit_gate import AT_ONCE, Admission, LimitGate
from qo.model import MAX_NAMES, ClaimRequest, Status, Task, release
from qo.tasks import Handler
from qo.transitions import log_stopped
from qo.worker.claim_plan import ClaimPlan
from qo.worker.controls import ClaimScope, ControlsReader
from qo.worker.lease_keeper import LeaseKeeper
from qo.worker.settings import WorkerSettings
from qo.worker.settler import Settler
from qo.worker.shutdown import DrainCheck
from qo.worker.waits import StopSignal, StoreCalls, idle_interval

log = logging.getLogger("qo.worker")
_MIN_IDLE_INTERVAL, _MAX_IDLE_INTERVAL = 1.0, 60.0  # seconds between two claims of an idle worker that is not notified
_STILL_RUNNING_DELAY = 2.0  # seconds before a task is due again if its earlier attempt still runs in this worker


class ClaimLoop:
    def __init__(
        self,
        engine: Engine,
        settings: WorkerSettings,
        *,
        scope: ClaimScope,
        plan: ClaimPlan,
        controls: ControlsReader,
        leased_runs: LeasedRuns,
        executors: Executors,
        settler: Settler,
        lease_keeper: LeaseKeeper,
        gate: LimitGate,
        drain: DrainCheck,
        calls: StoreCalls,
        signal: StopSignal,
        clock: Clock,
    ) -> None:
        self._engine, self._settings, self._scope, self._plan = engine, settings, scope, plan
        self._controls, self._leased_runs, self._executors = controls, leased_runs, executors
        self._settler, self._lease_keeper, self._drain, self._gate = settler, lease_keeper, drain, gate
        self._calls, self._signal, self._clock = calls, signal, clock
        self._handlers: dict[str, Handler] = {}  # of the last claim; they may be removed while its tasks are admitted

    async def run(self) -> None:
        """Claim and start tasks until the worker is stopped. Raises WorkerStuck if the store does not answer."""
        self._loop = asyncio.get_running_loop()
        self._executors.queue.on_claim_needed = self._claim_soon
        while not self._signal.is_stopping:
            self._plan.changed.clear()  # before the request is built, so that slots freed during the claim count
            request = self._plan.request()
            if self._settings.drain and self._scope.is_paused and not len(self._leased_runs):
                await self._calls.attempt(self._end_drain)
                continue
            if request is None:
                await self._wait_for_room()
                continue
            if self._controls.is_stale:
                await self._read_controls()
                continue
            narrowed = await self._narrow(request)
            if narrowed is None:
                await self._wait_for_limits(request)
                continue
            request, sent = narrowed, self._clock()
            tasks = await self._claim(request)
            try:
                admitted = await self._admit(tasks)
            except asyncio.CancelledError:  # the worker stops
                self._hand_back(tasks)
                raise
            self._start(tasks, admitted, request, sent + request.lease)
            if self._gate.turns.claimed(len(tasks), request.limit) or tasks or self._executors.queue.needs_claim:
                continue
            if self._settings.drain and not len(self._leased_runs):
                await self._calls.attempt(partial(self._stop_if_drained, request))
            else:
                await self._idle(request)

    async def _read_controls(self) -> None:
        await self._calls.answered("a read of the controls", self._controls.read())

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        began = self._clock()
        self._leased_runs.claim(request.lease_id)
        claim = asyncio.ensure_future(self._renew_and_claim(request))
        try:
            tasks = await self._calls.answered("a claim", claim)
        except asyncio.CancelledError:  # the worker stops; the engine releases the tasks of a claim that still runs
            if claim.done() and not claim.cancelled() and claim.exception() is None:
                self._hand_back(claim.result())
            raise
        except StorageError as error:
            await self._calls.back_off(error)
            return []
        self._calls.succeeded()
        self._plan.claimed(tasks, self._clock() - began)
        handlers = self._scope.handlers
        self._handlers = {task.type: handlers[task.type] for task in tasks if task.type in handlers}
        if {task.type for task in tasks} <= handlers.keys():
            return tasks
        # Some handlers were removed during the claim.
        removed = [release(task, None) for task in tasks if task.type not in handlers]
        await self._calls.attempt(lambda: self._engine.apply(removed))
        return [task for task in tasks if task.type in self._handlers]

    async def _renew_and_claim(self, request: ClaimRequest) -> list[Task]:
        await self._lease_keeper.renew_overdue()
        return await self._engine.claim(request)

    async def _narrow(self, request: ClaimRequest) -> ClaimRequest | None:
        """The request without what the fleet limits exclude; None if nothing is left."""
        if not self._gate.is_idle:
            refresh = partial(self._gate.refresh, request.types)
            await self._calls.answered("a read of limits", self._calls.attempt(refresh))
        narrowed = self._gate.narrow(request)
        if narrowed is None or narrowed.queues or not (full := self._gate.full_queues):
            return narrowed
        queues = [queue for queue in await self._queues_with_tasks() if queue not in full]
        return replace(narrowed, queues=tuple(queues[:MAX_NAMES])) if queues else None

    async def _queues_with_tasks(self) -> list[str]:
        try:
            counts = await self._calls.answered("a count", self._engine.count())
        except StorageError as error:
            await self._calls.back_off(error)
            return []
        return sorted({lane.queue for lane, number in counts.items() if number and lane.status is Status.PENDING})

    async def _admit(self, tasks: list[Task]) -> dict[str, Admission]:
        """The tasks that the fleet limits allow to start. Their slots are stored."""
        if tasks and not self._scope.is_known:
            # The first read of the controls is still in progress: pauses and limits must apply to these tasks.
            await self._read_controls()
            if not self._scope.is_known:  # the store is unreachable
                return {}
        try:
            return await self._calls.answered("a request for slots", self._gate.admit(tasks))
        except StorageError as error:
            await self._calls.back_off(error)
            return {}

    def _hand_back(self, tasks: list[Task]) -> None:
        """Release claimed tasks that have not become runs. The shutdown waits for this."""
        for task in tasks:
            handler = self._handlers.get(task.type) or self._scope.handlers.get(task.type)
            if self._leased_runs.get(task.id) is None and handler is not None:
                run = Run(task, handler, self._settler.report, received=self._clock())
                self._scope.limits.started(task.type)
                self._leased_runs.add(run)
                self._settler.report(run, HANDED_BACK)

    def _start(
        self, tasks: list[Task], admitted: dict[str, Admission], request: ClaimRequest, lease_until: float
    ) -> None:
        now = self._clock()
        runs = []
        for task in tasks:
            handler = self._handlers[task.type]
            run = Run(task, handler, self._settler.report, received=now, lease_until=lease_until)
            self._scope.limits.started(task.type)
            if self._is_running_already(task):
                self._settler.report(run, RunOutcome(handed_back=True, after=_STILL_RUNNING_DELAY))
                continue
            self._leased_runs.add(run)
            admission = admitted.get(task.id)
            if self._scope.holds_back(task.queue, task.type) or task.type not in self._scope.handlers:
                self._settler.report(run, HANDED_BACK)
            elif admission is None:
                refusal = self._gate.refusal(task)
                self._settler.report(run, RunOutcome(handed_back=True, after=refusal.delay, group=refusal.group))
            elif admission is not AT_ONCE and admission.is_timed:
                run.start_by = self._clock() + self._gate.seconds_until(admission.start_by)
                self._loop.call_later(max(0.0, self._gate.seconds_until(admission.start_at)), self._start_due, run)
            else:
                runs.append(run)
        starting = {run.task.id for run in runs} if len(runs) < len(tasks) else None
        others = [] if starting is None else [task for task in tasks if task.id not in starting]
        is_full = len(tasks) >= request.limit
        self._executors.start(runs, cut=self._plan.cut(tasks), is_full=is_full, others=others)

    def _start_due(self, run: Run) -> None:
        """Start a run whose start time has come."""
        if run.settled:
            return
        if self._signal.is_stopping or self._scope.holds_back(run.task.queue, run.task.type):
            self._settler.report(run, HANDED_BACK)
        else:
            self._executors.start_first(run)

    def _is_running_already(self, task: Task) -> bool:
        """Whether the handler of an earlier attempt that has lost its lease is still running here."""
        before = self._leased_runs.get(task.id)
        if before is None:
            return False
        if not before.settled:
            self._lease_keeper.lose(before)
            log_stopped(before.task, cancelled=False, ran=None)
        return before.began is not None and before.ended is None

    def _claim_soon(self) -> None:
        """Claim without waiting, because a slot is free and waits for another claim. Called from any thread."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._plan.changed.set)

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._scope.limits.next_tokens(self._settings.poll or _MIN_IDLE_INTERVAL)):
                await self._plan.changed.wait()

    async def _wait_for_limits(self, request: ClaimRequest) -> None:
        """Wait until the fleet limits may allow a part of the request."""
        if self._executors.queue.needs_claim:
            self._executors.queue.lift_barrier()
        if self._settings.drain and not len(self._leased_runs):
            await self._calls.attempt(partial(self._stop_if_drained, request))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._gate.next_request_in(_MIN_IDLE_INTERVAL)):
                await self._plan.changed.wait()

    async def _idle(self, request: ClaimRequest, limit: float = float("inf")) -> None:
        """Wait for a claimable task, for a free slot, or for the stop, at most `limit` seconds."""
        changed = self._plan.changed
        if changed.is_set():
            return
        longest = self._settings.poll or idle_interval(self._plan.claim_took, _MIN_IDLE_INTERVAL, _MAX_IDLE_INTERVAL)
        longest = self._scope.limits.next_tokens(min(longest, limit))  # `request` omits types without a token
        longest = self._gate.next_request_in(longest)  # and groups that are full
        waits = [asyncio.ensure_future(self._engine.wait(request, longest)), asyncio.ensure_future(changed.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            answers = await asyncio.gather(*waits, return_exceptions=True)
        waited = answers[0]
        if isinstance(waited, StorageError):
            await self._calls.back_off(waited)
        elif isinstance(waited, Exception):
            raise waited

    async def _stop_if_drained(self, request: ClaimRequest) -> None:
        if await self._drain.has_more_to_fail():
            await self._idle(request, _MIN_IDLE_INTERVAL)  # the next check comes soon, also on a slow store
        elif not await self._drain.waits_for_limits(self._gate) and await self._drain.is_over(request):
            await self._end_drain()
        else:
            await self._idle(request)

    async def _end_drain(self) -> None:
        if left := await self._drain.left():
            log.warning("drained; tasks left in the queue: %s", left)
        else:
            log.info("drained: the queue is empty")
        self._signal.stop()
