"""The worker claims, runs and settles tasks in batches. Its event loop runs no handler, so no handler can block it.

`Worker` builds the parts and runs them side by side: the claim loop (`claim_loop.py`), the settler, the lease keeper,
the controls and the registration. `shutdown.py` ends it.
"""

import asyncio
import logging

from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.executors.executors import Executors, handlers_of
from qo.executors.exit_guard import confined
from qo.executors.log_capture import CAPTURE
from qo.executors.run import Run
from qo.executors.run_table import LeasedRuns, RunTable
from qo.fleet_limits.limit_gate import LimitGate
from qo.fleet_limits.rules import declare_limits
from qo.store_time import StoreTime
from qo.tasks import Registry
from qo.worker.callbacks import CallbackThread
from qo.worker.claim_loop import ClaimLoop
from qo.worker.claim_plan import ClaimPlan, Prefetch
from qo.worker.controls import ClaimScope, ControlsReader
from qo.worker.lease_keeper import CancellationWatch, LeaseKeeper
from qo.worker.registration import DeclaredSchedules, Registration, WorkerStatus
from qo.worker.settings import WorkerSettings
from qo.worker.settler import Settler
from qo.worker.shutdown import DrainCheck, Shutdown
from qo.worker.unknown_types import UnknownTypes
from qo.worker.waits import CANCEL_TIMEOUT, StopSignal, StoreCalls, bounded, idle_interval, in_background, unless_failed

log = logging.getLogger("qo.worker")

_HEARTBEAT_INTERVAL = 0.5  # seconds, in the event loop
_LAST_CLAIM_TIMEOUT = 2.0  # seconds for a claim in progress when the worker is stopped


class Worker:
    def __init__(
        self,
        client: Client,
        registry: Registry,
        settings: WorkerSettings | None = None,
        *,
        clock: Clock = boot_clock,
        wall_clock: Clock = system_clock,
        table: RunTable | None = None,
    ) -> None:
        engine, transitions = client.engine, client.transitions
        self._registry, self._clock = registry, clock
        self._settings = settings = settings or WorkerSettings()
        self._handlers = handlers_of(registry, settings.types)
        self.alive_at = clock()  # updated by the worker's event loop; the watchdog checks it

        self._leased_runs = LeasedRuns(table)
        self._store_time = StoreTime(engine, wall_clock)
        self._registration = Registration(engine, settings, tuple(self._handlers), self._store_time)
        self._executors = Executors(
            settings.concurrency,
            result_limit=lambda: client.payload_limit,
            hooks=registry.hooks,
            worker_id=self.id,
            captures_logs=settings.capture_logs,
            tasks_per_process=settings.tasks_per_process,
            clock=clock,
            table=table,
        )
        self._callbacks = CallbackThread(registry.hooks, self._executors.worker_context, clock=clock)
        self._is_open = False
        self._gate = LimitGate(engine, clock=clock, store_time=self._store_time)
        self._gate.turns.held = self._leased_runs.by_group
        self._scope = ClaimScope(engine, self._handlers, settings, gate=self._gate, worker_id=self.id, clock=clock)
        queue = self._executors.queue
        queue.on_started = self._callbacks.started
        self._plan = ClaimPlan(self._scope, self._leased_runs, queue, settings, worker_id=self.id, clock=clock)
        self._signal = StopSignal(self._plan.changed)
        self._calls = StoreCalls(lambda: self._signal.is_stopping, stuck_after=settings.stuck_after)
        self._settler = Settler(
            engine,
            self._leased_runs,
            self._registration,
            self._settled,
            ahead=self._plan.prefetch.ahead,
            transitions=transitions,
            callbacks=self._callbacks,
            calls=self._calls,
            captures_logs=settings.capture_logs,
            clock=clock,
        )
        self._lease_keeper = LeaseKeeper(
            engine,
            self._leased_runs,
            self._executors,
            self._settler,
            lease=self._plan.lease,
            calls=self._calls,
            clock=clock,
        )
        self._cancellation = CancellationWatch(
            engine,
            self._leased_runs,
            self._lease_keeper,
            self._callbacks,
            max_interval=settings.lease / 3,
            clock=clock,
        )
        self._lease_keeper.on_unstarted = self._plan.unstarted
        self._lease_keeper.on_dropped = lambda run: self._gate.ended([run.task])
        self._lease_keeper.on_lost = self._settler.on_lost = self._cancellation.explain
        self._controls = ControlsReader(
            self._scope,
            queue,
            self._settler,
            calls=self._calls,
            signal=self._signal,
            is_busy=lambda: self._plan.is_busy,
            poll=settings.poll,
            clock=clock,
        )
        self._unknown_types = UnknownTypes(
            engine,
            self._scope,
            self._registration,
            transitions,
            fail_after=settings.fail_unknown_types,
            clock=clock,
            store_time=self._store_time,
        )
        self._declared_schedules = DeclaredSchedules(engine, registry, self._store_time, worker_id=self.id)
        self._claim_loop = ClaimLoop(
            engine,
            settings,
            scope=self._scope,
            plan=self._plan,
            controls=self._controls,
            leased_runs=self._leased_runs,
            executors=self._executors,
            settler=self._settler,
            lease_keeper=self._lease_keeper,
            gate=self._gate,
            drain=DrainCheck(engine, self._scope, self._unknown_types, self._store_time, settings),
            calls=self._calls,
            signal=self._signal,
            clock=clock,
        )
        self._gate.on_change = self._plan.changed.set
        self._engine = engine
        self._shutdown = Shutdown(
            self._signal,
            self._leased_runs,
            self._executors,
            self._settler,
            self._registration,
            announce=self._announce,
            changed=self._plan.changed,
            grace=settings.grace,
            clock=clock,
        )

    @property
    def id(self) -> str:
        return self._registration.worker_id

    @property
    def completed(self) -> int:
        return self._registration.completed

    @property
    def failed(self) -> int:
        return self._registration.failed

    @property
    def drain_requested(self) -> bool:
        """Whether the controls asked this worker to drain before it was stopped."""
        return self._controls.drain_requested

    @property
    def status(self) -> WorkerStatus:
        queue, held = self._executors.queue, self._leased_runs.runs()
        return WorkerStatus(
            running=tuple(run.task.id for run in queue.running()),
            waiting=len(queue),
            held=len(held),
            leases=sum(not run.lost for run in held),
            free_slots=queue.free_slots,
            is_stopping=self._signal.is_stopping,
        )

    @property
    def prefetch(self) -> Prefetch:
        """How many tasks this worker claims ahead."""
        return self._plan.prefetch

    def stop(self) -> None:
        """Claim no more tasks, wait for running ones, release those that exceed the grace period."""
        self._signal.stop()

    def abort(self) -> None:
        """Release all tasks now."""
        self._signal.abort()

    def refresh(self) -> None:
        """Apply changes of the registry."""
        handlers = handlers_of(self._registry, self._settings.types)
        self._handlers.clear()
        self._handlers.update(handlers)
        self._registration.set_types(tuple(handlers))
        self._scope.refresh()
        self._plan.changed.set()

    async def open(self) -> None:
        """Enter the lifespan of the app. `run` does it too. Raises LifespanFailed."""
        if self._is_open:
            return
        self._is_open = True
        try:
            with confined():
                await self._signal.limit(self._executors.open(), 0.0)
        except BaseException:
            await self._executors.close()
            raise

    async def run(self) -> None:
        """Work until stopped.

        Raises WorkerStuck if the worker cannot continue, LifespanFailed if the lifespan of the app cannot be entered,
        and NewerFormat if the store's format is newer than this version of qo reads.
        """
        await self.open()
        if self._settings.capture_logs:
            CAPTURE.install()
        try:
            with self._controls.listening(), confined():
                self._callbacks.worker("worker_started")
                await self._work()
                await self._callbacks.finish()
        finally:
            if self._settings.capture_logs:
                CAPTURE.remove()
            await self._executors.close()

    async def _work(self) -> None:
        # Before the worker is registered: from then on it may be asked to drain again.
        for first_call in (self._registration.clear_drain_request, self._declare_limits):
            limited = self._signal.limit(self._calls.attempt(first_call), 0.0)
            await self._calls.answered("the first reads", limited)
        keeper = self._lease_keeper
        work = in_background(
            self._settler.run(),
            keeper.renew(),
            keeper.report_started(),
            keeper.watch(),
            self._announce_regularly(),
            self._heartbeat(),
            self._registration.register_types(self._calls),
            self._controls.read_regularly(),
            self._unknown_types.check_regularly(self._controls, self._calls),
            self._declared_schedules.declare_regularly(self._calls, self._announce),
            self._callbacks.watch(),
            self._cancellation.run(),
        )
        async with work as tasks:
            await unless_failed(self._signal.limit(self._claim_loop.run(), _LAST_CLAIM_TIMEOUT), tasks)
            self._callbacks.worker("worker_stopping")
            await unless_failed(self._shutdown.finish(), tasks)
            await bounded(self._gate.close(), CANCEL_TIMEOUT)

    def _settled(self, runs: list[Run]) -> None:
        self._gate.ended([run.task for run in runs])
        self._plan.settled(runs)

    async def _declare_limits(self) -> None:
        await self._store_time.update()
        options = {type: handler.options for type, handler in self._handlers.items()}
        await declare_limits(
            self._engine,
            {type: option.limit for type, option in options.items()},
            {type: option.fair_by for type, option in options.items()},
        )

    async def _announce_regularly(self) -> None:
        while True:
            began = self._clock()
            await self._announce()
            shortest = self._settings.heartbeat
            idle = not self._plan.is_busy and not len(self._leased_runs)
            await asyncio.sleep(idle_interval(self._clock() - began, shortest, 3 * shortest) if idle else shortest)

    async def _announce(self) -> None:
        await self._calls.attempt(self._write_registration)

    async def _write_registration(self) -> None:
        await self._store_time.update()
        await self._registration.announce(self.status)

    async def _heartbeat(self) -> None:
        while True:
            self.alive_at = self._clock()
            await asyncio.sleep(_HEARTBEAT_INTERVAL)
