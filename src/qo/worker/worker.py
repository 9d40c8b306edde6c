"""The worker claims, runs and settles tasks in batches. Its event loop runs no handler, so no handler can block it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any

from qo import controls
from qo.backoff import Backoff
from qo.client import Client
from qo.clock import Clock, boot_clock, system_clock
from qo.errors import InvalidSetting, NewerFormat, StorageError
from qo.model import ClaimRequest, Task, release
from qo.store_time import StoreTime
from qo.tasks import Executor, Handler, Registry
from qo.worker.bounded_wait import abandon, bounded, ended
from qo.worker.claim_plan import ClaimPlan
from qo.worker.drain_check import DrainCheck
from qo.worker.executors import Executors, WorkerCancelled, WorkerStuck
from qo.worker.exit_guard import confined
from qo.worker.idle_interval import idle_interval
from qo.worker.lease_keeper import LeaseKeeper
from qo.worker.leased_runs import LeasedRuns
from qo.worker.process_executor import check_reachable
from qo.worker.registration import Registration
from qo.worker.run import HANDED_BACK, Run, RunOutcome
from qo.worker.run_table import RunTable
from qo.worker.settings import WorkerSettings
from qo.worker.settler import Settler
from qo.worker.unknown_types import UnknownTypes

log = logging.getLogger("qo.worker")
# All constants are in seconds.
_CONTROLS_INTERVAL = 0.75  # between two reads of the controls while there is work
_MAX_CONTROLS_AGE = 1.0  # before a claim, older controls are read again, so a pause takes effect within a second
_MIN_CONTROLS_INTERVAL = 0.05  # however short the poll interval is
_MAX_PAUSED_INTERVAL = 5.0  # between two reads of the controls by a paused worker
_BUSY_PERIOD = 10.0  # a worker counts as busy for this long after a claim that returned tasks
_MIN_IDLE_INTERVAL, _MAX_IDLE_INTERVAL = 1.0, 60.0  # between two claims of an idle worker that is not notified
_STILL_RUNNING_DELAY = 2.0  # before a task is due again if its earlier attempt still runs in this worker
_HEARTBEAT_INTERVAL = 0.5
_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE = 0.1, 5.0  # between attempts while the store is unreachable
_LAST_CLAIM_TIMEOUT = 2.0  # for a claim in progress when the worker is stopped
_HAND_BACK_TIMEOUT = 3.0  # for handing back the remaining tasks after the grace period
_ABORT_TIMEOUT = 2.0  # for handing them back after an abort
_CANCEL_TIMEOUT = 0.5  # for cancelled background tasks to end


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
        self._engine, self._clock = client.engine, clock
        self._transitions = client.transitions
        self._registry = registry
        self._settings = settings = settings or WorkerSettings()
        self._handlers = _handlers(registry, settings)
        self._leased_runs, self._table = LeasedRuns(table), table
        self._executors = Executors(settings, result_limit=lambda: client.payload_limit, clock=clock, table=table)
        self._store_time = StoreTime(self._engine, wall_clock)
        self._registration = Registration(self._engine, settings, tuple(self._handlers), self._store_time)
        self._claim_plan = ClaimPlan(
            self._engine,
            self._handlers,
            self._leased_runs,
            self._executors.queue,
            settings,
            worker_id=self.id,
            clock=clock,
        )
        self._unknown_types = UnknownTypes(
            self._engine,
            self._claim_plan,
            self._transitions,
            fail_after=settings.fail_unknown_types,
            clock=clock,
            store_time=self._store_time,
        )
        self._drain = DrainCheck(self._engine, self._claim_plan, self._store_time, settings.shards)
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()
        self._freed = asyncio.Event()
        # A pause takes effect within one poll interval, at most one second. A quarter of that is left for the read.
        self._controls_interval = min(
            _CONTROLS_INTERVAL, max(_MIN_CONTROLS_INTERVAL, _CONTROLS_INTERVAL * (settings.poll or 1.0))
        )
        self._backoff = Backoff(_MIN_RETRY_PAUSE, _MAX_RETRY_PAUSE)
        self.drain_requested = False  # the controls asked this worker to drain
        self._holds = 0  # pauses announced in this process
        self._reads: set[asyncio.Future[None]] = set()  # of the controls, in progress
        self._claim_took = 0.0
        self._busy_until = float("-inf")
        self.alive_at = clock()  # updated by the worker's event loop; the watchdog checks it

    @property
    def id(self) -> str:
        return self._registration.worker_id

    @property
    def completed(self) -> int:
        return self._registration.completed

    @property
    def failed(self) -> int:
        return self._registration.failed

    def stop(self) -> None:
        """Claim no more tasks, wait for running ones, hand back those that exceed the grace period."""
        self._stopping.set()
        self._freed.set()

    def abort(self) -> None:
        """Hand back all tasks now."""
        self.stop()
        self._aborting.set()

    def refresh(self) -> None:
        """Apply changes of the registry."""
        handlers = _handlers(self._registry, self._settings)
        self._handlers.clear()
        self._handlers.update(handlers)
        self._registration.types = tuple(handlers)
        self._claim_plan.refresh()
        self._freed.set()

    async def run(self) -> None:
        """Work until stopped.

        Raises WorkerStuck if the worker cannot continue, and NewerFormat if the store's format is newer than this
        version of qo reads.
        """
        self._loop = asyncio.get_running_loop()
        self._executors.queue.on_claim_needed = self._claim_soon
        self._settler = Settler(
            self._engine,
            self._leased_runs,
            self._registration,
            self._settled,
            prefetch=self._claim_plan.prefetch,
            transitions=self._transitions,
            clock=self._clock,
        )
        self._lease_keeper = LeaseKeeper(
            self._engine,
            self._leased_runs,
            self._executors,
            self._settler,
            lease=self._claim_plan.lease,
            clock=self._clock,
        )
        controls.add_listener(self)
        try:
            with confined():
                await self._work(self._lease_keeper)
        finally:
            controls.remove_listener(self)
            await self._executors.close()

    async def _work(self, keeper: LeaseKeeper) -> None:
        # Before the worker is registered: from then on it may be asked to drain again.
        await self._unless_stopped(self._call_store(self._registration.clear_drain_request), 0.0)
        leases = keeper.renew(), keeper.report_started(), keeper.watch()
        upkeep = self._settler.run(), *leases, self._announce_regularly(), self._heartbeat()
        checks = self._read_controls_regularly(), self._check_unknown_types()
        async with _background(*upkeep, *checks) as failed:
            await _first(self._unless_stopped(self._claim_and_start(), _LAST_CLAIM_TIMEOUT), failed)
            await _first(self._finish(), failed)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None], timeout: float) -> None:
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
        await bounded(self._aborting.wait(), timeout)

    # --- claim and start

    async def _claim_and_start(self) -> None:
        while not self._stopping.is_set():
            self._freed.clear()  # before the request is built, so that slots freed during the claim count
            request = self._claim_plan.request()
            if self._settings.drain and self._claim_plan.is_paused and not len(self._leased_runs):
                await self._call_store(self._end_drain)
                continue
            if request is None:
                await self._wait_for_room()
                continue
            if self._is_out_of_date():
                await self._call_store(self._apply_controls)
                continue
            sent = self._clock()
            tasks = await self._claim(request)
            if tasks:
                self._busy_until = self._clock() + _BUSY_PERIOD
            self._start(tasks, request, sent + request.lease)
            if tasks or self._executors.queue.needs_claim:
                continue
            if self._settings.drain and not len(self._leased_runs):
                await self._call_store(partial(self._stop_if_drained, request))
            else:
                await self._idle(request)

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        began = self._clock()
        try:
            async with asyncio.timeout(self._settings.stuck_after):
                if self._table is not None:
                    self._table.claim(request.lease_id)
                await self._lease_keeper.renew_overdue()
                tasks = await self._engine.claim(request)
        except StorageError as error:
            await self._back_off(error)
            return []
        except TimeoutError:
            raise WorkerStuck(f"the store has not answered a claim for {self._settings.stuck_after:g} s") from None
        self._backoff.reset()
        self._claim_took = self._clock() - began
        self._claim_plan.prefetch.claimed(self._claim_took)
        self._claim_plan.lease.claimed(self._claim_took)
        if {task.type for task in tasks} <= self._handlers.keys():
            return tasks
        # Some handlers were removed during the claim.
        removed = [release(task, None) for task in tasks if task.type not in self._handlers]
        await self._call_store(lambda: self._engine.apply(removed))
        return [task for task in tasks if task.type in self._handlers]

    def _start(self, tasks: list[Task], request: ClaimRequest, lease_until: float) -> None:
        now = self._clock()
        runs = []
        for task in tasks:
            run = Run(task, self._handlers[task.type], self._settler.report, received=now, lease_until=lease_until)
            self._claim_plan.limits.started(task.type)
            if self._is_running_already(task):
                self._settler.report(run, RunOutcome(handed_back=True, after=_STILL_RUNNING_DELAY))
                continue
            self._leased_runs.add(run)
            if self._claim_plan.is_held_back(task):
                self._settler.report(run, HANDED_BACK)
            else:
                runs.append(run)
        self._executors.start(runs, cut=self._claim_plan.cut(tasks), is_full=len(tasks) >= request.limit)

    def _is_running_already(self, task: Task) -> bool:
        """Whether the handler of an earlier attempt, which has lost its lease, still runs here."""
        before = self._leased_runs.get(task.id)
        if before is None:
            return False
        if not before.settled:
            self._lease_keeper.lose(before)
        return before.began is not None and before.ended is None

    def _settled(self, runs: list[Run]) -> None:
        for run in runs:
            if run.began is None:
                self._claim_plan.limits.returned(run.task.type)
            elif run.ended is not None:
                self._claim_plan.prefetch.ended(run.task.type, run.ended - run.began)
        self._freed.set()

    def _claim_soon(self) -> None:
        """Claim without waiting, because a free slot waits for another claim. Called from any thread."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._freed.set)

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._claim_plan.limits.wait(self._settings.poll or _MIN_IDLE_INTERVAL)):
                await self._freed.wait()

    async def _idle(self, request: ClaimRequest) -> None:
        """Wait for a claimable task, for a free slot, or for the stop."""
        if self._freed.is_set():
            return
        longest = self._settings.poll or idle_interval(self._claim_took, _MIN_IDLE_INTERVAL, _MAX_IDLE_INTERVAL)
        longest = self._claim_plan.limits.next_token(longest)  # `request` omits types without a token
        waits = [
            asyncio.ensure_future(self._engine.wait(request, longest)),
            asyncio.ensure_future(self._freed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            answers = await asyncio.gather(*waits, return_exceptions=True)
        waited = answers[0]
        if isinstance(waited, StorageError):
            await self._back_off(waited)
        elif isinstance(waited, Exception):
            raise waited

    async def _stop_if_drained(self, request: ClaimRequest) -> None:
        if self._settings.fail_unknown_types is not None:
            await self._handle_unknown_types()
        if await self._drain.is_over(request):
            await self._end_drain()
        else:
            await self._idle(request)

    async def _end_drain(self) -> None:
        if left := await self._drain.left():
            log.warning("drained; tasks left in the queue: %s", left)
        else:
            log.info("drained: the queue is empty")
        self.stop()

    # --- controls, registration, heartbeat

    async def _read_controls_regularly(self) -> None:
        """Apply the controls. An idle worker reads them before each claim (`_claim_and_start`) instead of here."""
        while True:
            await self._call_store(self._registration.make_types_known)
            began, pause = self._clock(), self._controls_interval
            paused = self._claim_plan.is_paused
            if paused or self._executors.queue.is_closed or began < self._busy_until:
                await self._call_store(self._apply_controls)
                if paused:
                    pause = idle_interval(self._clock() - began, _CONTROLS_INTERVAL, _MAX_PAUSED_INTERVAL)
            await asyncio.sleep(pause)

    def controls_changed(self, *, hold: bool) -> "Future[None]":
        """Read and apply the controls now. With `hold`, no handler starts before that.

        May be called from any thread of this process. The future completes once the controls are applied.
        """
        applied: Future[None] = Future()
        if hold:
            self._holds += 1
            self._executors.queue.close()

        async def apply() -> None:
            await self._call_store(self._apply_controls)
            applied.set_result(None)

        def read() -> None:
            self._reads.add(reading := asyncio.ensure_future(apply()))
            reading.add_done_callback(self._reads.discard)

        try:
            self._loop.call_soon_threadsafe(read)
        except RuntimeError:  # the worker has ended
            applied.set_result(None)
        return applied

    async def _apply_controls(self) -> None:
        holds = self._holds
        await self._claim_plan.apply_controls()
        queue = self._executors.queue
        queue.recall(self._is_held_back)  # before `reopen`: an executor may have taken these runs before the close
        for run in queue.take_back(self._is_held_back):
            self._settler.report(run, HANDED_BACK)
        if holds == self._holds:  # otherwise these controls may be older than the last pause
            queue.reopen()
        if self._claim_plan.drain_requested and not self._stopping.is_set():
            log.info("drain requested: claiming no more tasks")
            self.drain_requested = True
            self.stop()

    def _is_held_back(self, run: Run) -> bool:
        return self._claim_plan.is_held_back(run.task)

    def _is_out_of_date(self) -> bool:
        return (
            self._clock() - self._claim_plan.controls_read_at
            >= self._controls_interval * _MAX_CONTROLS_AGE / _CONTROLS_INTERVAL
        )

    async def _check_unknown_types(self) -> None:
        while True:
            began = self._clock()
            if self._is_out_of_date():
                await self._call_store(self._apply_controls)
            await self._call_store(self._handle_unknown_types)
            await asyncio.sleep(self._unknown_types.pause(self._clock() - began))

    async def _handle_unknown_types(self) -> None:
        self._registration.failed += await self._unknown_types.check()

    async def _announce_regularly(self) -> None:
        while True:
            began = self._clock()
            await self._call_store(self._announce)
            shortest = self._settings.heartbeat
            idle = began >= self._busy_until and not len(self._leased_runs)
            await asyncio.sleep(idle_interval(self._clock() - began, shortest, 3 * shortest) if idle else shortest)

    async def _announce(self) -> None:
        await self._store_time.look()
        running = [run.task.id for run in self._executors.queue.running()]
        await self._registration.announce(running, waiting=len(self._executors.queue))

    async def _heartbeat(self) -> None:
        while True:
            self.alive_at = self._clock()
            await asyncio.sleep(_HEARTBEAT_INTERVAL)

    async def _call_store(self, call: Any) -> None:
        """Await `call()`. If the store is unreachable, log a warning and back off; the caller retries later."""
        try:
            await call()
        except StorageError as error:
            await self._back_off(error)

    async def _back_off(self, error: StorageError) -> None:
        if isinstance(error, NewerFormat) and not self._stopping.is_set():
            raise error  # retrying cannot help: this version of qo cannot read the store
        pause = self._backoff.next()
        log.warning("the store is unreachable; retrying in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)

    # --- shutdown

    async def _finish(self) -> None:
        """Hand back tasks that have not started, wait for running ones, hand back those that do not end in time.

        If the store does not answer, this takes at most the grace period and `_HAND_BACK_TIMEOUT`.
        """
        self._registration.status = "draining"
        calls = [
            asyncio.create_task(self._call_store(self._announce)),
            asyncio.create_task(self._hand_back(self._executors.take_unstarted())),
        ]
        await self._wait_for_runs()
        unfinished = [run for run in self._leased_runs.runs() if not run.settled]
        for run in unfinished:
            run.settled = True
            self._executors.cancel(run)
        calls.append(asyncio.create_task(self._hand_back(unfinished)))
        if not await bounded(self._leave(calls), _ABORT_TIMEOUT if self._aborting.is_set() else _HAND_BACK_TIMEOUT):
            log.warning("the store does not answer: tasks that were not handed back run again when their leases expire")
        abandon(calls)

    async def _leave(self, calls: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*calls)
        with contextlib.suppress(StorageError):
            await self._registration.leave()

    async def _wait_for_runs(self) -> None:
        """Wait until no run is left, the grace period is over, or the worker is aborted."""
        until = self._clock() + self._settings.grace
        while len(self._leased_runs) and not self._aborting.is_set() and (left := until - self._clock()) > 0:
            self._freed.clear()
            waits = [asyncio.ensure_future(self._freed.wait()), asyncio.ensure_future(self._aborting.wait())]
            await asyncio.wait(waits, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()

    async def _hand_back(self, runs: list[Run]) -> None:
        for run in runs:
            run.settled = True
        if runs:
            log.info("handing back %d tasks", len(runs))
            await self._settler.apply([release(run.task, None) for run in runs])
        for run in runs:
            self._leased_runs.remove(run)
        self._freed.set()


def _handlers(registry: Registry, settings: WorkerSettings) -> dict[str, Handler]:
    handlers = {handler.type: handler for handler in registry}
    missing = [type for type in settings.types if type not in handlers]
    if missing:
        raise InvalidSetting(f"no handler for {', '.join(missing)}; handlers exist for: {', '.join(sorted(handlers))}")
    if settings.types:
        handlers = {type: handlers[type] for type in settings.types}
    for handler in handlers.values():
        if handler.options.executor is Executor.PROCESS:
            check_reachable(handler)
    return handlers


@contextlib.asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Run `work` in tasks that are cancelled when the block ends."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await ended(tasks, _CANCEL_TIMEOUT)
        abandon(tasks)


async def _first(main: Coroutine[Any, Any, None], failed: list[asyncio.Task[None]]) -> None:
    """Run `main` to its end, unless a background task in `failed` ends first. Raises what that task raised."""
    running = asyncio.create_task(main)
    try:
        await asyncio.wait([running, *failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not running.done():
            running.cancel()
            await ended([running], _CANCEL_TIMEOUT)
        abandon([running])
    for task in [*failed, running]:
        if task.done() and task.cancelled():
            raise WorkerCancelled("a background task of the worker was cancelled; restart the worker")
        if task.done():
            task.result()
