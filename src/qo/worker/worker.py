"""The worker: claim, run, settle, in batches. This loop never runs a handler, so no handler can stop it."""

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
from qo.worker.idle_interval import rest
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
_LOOK = 0.75  # seconds between two looks at the switches while there is work
_STALE = 1.0  # seconds; older switches are looked at again before the next claim, so a pause holds within a second
_SHORTEST_LOOK = 0.05  # seconds between two looks, however short the poll interval
_PAUSED = 5.0  # seconds, at most, between two looks of a paused worker
_BUSY = 10.0  # seconds after a claim that a worker counts as having work
_QUICK, _SLOW = 1.0, 60.0  # seconds between two claims of an idle worker, if nothing is heard of a task
_ANOTHER = 2.0  # seconds for which a task is left to other workers while an earlier attempt still runs here
_PULSE = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds between tries while the store is unreachable
_LAST_CLAIM = 2.0  # seconds a claim may go on after the worker was stopped
_LAST_ANSWER = 3.0  # seconds the store has, after the grace period, to take back what is left
_ABORT_ANSWER = 2.0  # seconds it has for that after an abort
_CANCELLATION = 0.5  # seconds cancelled background work has to end


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
        self._held, self._table = LeasedRuns(table), table
        self._executors = Executors(settings, result_limit=lambda: client.payload_limit, clock=clock, table=table)
        self._store_time = StoreTime(self._engine, wall_clock)
        self._registration = Registration(self._engine, settings, tuple(self._handlers), self._store_time)
        self._claiming = ClaimPlan(
            self._engine,
            self._handlers,
            self._held,
            self._executors.queue,
            settings,
            worker_id=self.id,
            clock=clock,
        )
        self._unknown_types = UnknownTypes(
            self._engine,
            self._claiming,
            self._transitions,
            fail_after=settings.fail_unknown_types,
            clock=clock,
            store_time=self._store_time,
        )
        self._drain = DrainCheck(self._engine, self._claiming, self._store_time, settings.shards)
        self._stopping, self._aborting = asyncio.Event(), asyncio.Event()
        self._freed = asyncio.Event()
        # A pause elsewhere holds within one poll interval, or within a second: a quarter is left for the look itself.
        self._look_interval = min(_LOOK, max(_SHORTEST_LOOK, _LOOK * (settings.poll or 1.0)))
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self.dismissed = False  # someone asked for its end, by a switch
        self._holds = 0  # pauses told of in this process
        self._looks: set[asyncio.Future[None]] = set()  # at the switches, under way
        self._claim_took = 0.0
        self._busy_until = float("-inf")
        self.alive_at = clock()  # moves as long as the worker's loop does; a watchdog may look

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
        """Take no more tasks, let the running ones end, hand back those that do not within the grace period."""
        self._stopping.set()
        self._freed.set()

    def abort(self) -> None:
        """Hand everything back now."""
        self.stop()
        self._aborting.set()

    def refresh(self) -> None:
        """Take over what changed in the registry."""
        handlers = _handlers(self._registry, self._settings)
        self._handlers.clear()
        self._handlers.update(handlers)
        self._registration.types = tuple(handlers)
        self._claiming.refresh()
        self._freed.set()

    async def run(self) -> None:
        """Work until stopped; raises WorkerStuck if that became impossible."""
        self._loop = asyncio.get_running_loop()
        self._executors.queue.on_barred = self._claim_soon
        self._settler = Settler(
            self._engine,
            self._held,
            self._registration,
            self._settled,
            pace=self._claiming.pace,
            transitions=self._transitions,
            clock=self._clock,
        )
        self._upkeep = LeaseKeeper(
            self._engine, self._held, self._executors, self._settler, lease=self._claiming.lease, clock=self._clock
        )
        controls.add_listener(self)
        try:
            with confined():
                await self._work(self._upkeep)
        finally:
            controls.remove_listener(self)
            await self._executors.close()

    async def _work(self, upkeep: LeaseKeeper) -> None:
        # Before anyone can see this worker and ask it to drain again.
        await self._unless_stopped(self._patiently(self._registration.forget_dismissal), 0.0)
        leases = upkeep.renew(), upkeep.tell_started(), upkeep.watch()
        keeping = self._settler.run(), *leases, self._beat(), self._pulse()
        looking = self._look(), self._check_unknown_types()
        async with _background(*keeping, *looking) as failed:
            await _first(self._unless_stopped(self._claim_and_start(), _LAST_CLAIM), failed)
            await _first(self._finish(), failed)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None], patience: float) -> None:
        """Await `work`; once the worker is stopped, for `patience` seconds more at most, and not after an abort."""
        working = asyncio.create_task(work)
        stopped = asyncio.create_task(self._wait_after_stop(patience))
        try:
            await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            abandon([working, stopped])

    async def _wait_after_stop(self, patience: float) -> None:
        await self._stopping.wait()
        await bounded(self._aborting.wait(), patience)

    # --- claim and start

    async def _claim_and_start(self) -> None:
        while not self._stopping.is_set():
            self._freed.clear()  # before looking for room: what becomes free while a claim is under way counts
            request = self._claiming.request()
            if self._settings.drain and self._claiming.is_paused and not len(self._held):
                await self._patiently(self._end_drain)
                continue
            if request is None:
                await self._wait_for_room()
                continue
            if self._is_out_of_date():
                await self._patiently(self._obey)
                continue
            sent = self._clock()
            tasks = await self._claim(request)
            if tasks:
                self._busy_until = self._clock() + _BUSY
            self._start(tasks, request, sent + request.lease)
            if tasks or self._executors.queue.is_barred:
                continue
            if self._settings.drain and not len(self._held):
                await self._patiently(partial(self._stop_if_drained, request))
            else:
                await self._idle(request)

    async def _claim(self, request: ClaimRequest) -> list[Task]:
        began = self._clock()
        try:
            async with asyncio.timeout(self._settings.stuck_after):
                if self._table is not None:
                    self._table.claim(request.lease_id)
                await self._upkeep.renew_overdue()
                tasks = await self._engine.claim(request)
        except StorageError as error:
            await self._away(error)
            return []
        except TimeoutError:
            raise WorkerStuck(f"the store has not answered a claim for {self._settings.stuck_after:g} s") from None
        self._backoff.reset()
        self._claim_took = self._clock() - began
        self._claiming.pace.claimed(self._claim_took)
        self._claiming.lease.claimed(self._claim_took)
        if {task.type for task in tasks} <= self._handlers.keys():
            return tasks
        # Some handlers were removed while the claim was under way.
        removed = [release(task, None) for task in tasks if task.type not in self._handlers]
        await self._patiently(lambda: self._engine.apply(removed))
        return [task for task in tasks if task.type in self._handlers]

    def _start(self, tasks: list[Task], request: ClaimRequest, lease_until: float) -> None:
        now = self._clock()
        runs = []
        for task in tasks:
            run = Run(task, self._handlers[task.type], self._settler.report, received=now, lease_until=lease_until)
            self._claiming.limits.started(task.type)
            if self._is_running_already(task):
                self._settler.report(run, RunOutcome(handed_back=True, after=_ANOTHER))
                continue
            self._held.add(run)
            if self._claiming.is_held_back(task):
                self._settler.report(run, HANDED_BACK)
            else:
                runs.append(run)
        self._executors.start(runs, cut=self._claiming.cut(tasks), is_full=len(tasks) >= request.limit)

    def _is_running_already(self, task: Task) -> bool:
        """The handler of an earlier attempt still runs here: that attempt has lost its lease."""
        before = self._held.get(task.id)
        if before is None:
            return False
        if not before.settled:
            self._upkeep.lose(before)
        return before.began is not None and before.ended is None

    def _settled(self, runs: list[Run]) -> None:
        for run in runs:
            if run.began is None:
                self._claiming.limits.returned(run.task.type)
            elif run.ended is not None:
                self._claiming.pace.ended(run.task.type, run.ended - run.began)
        self._freed.set()

    def _claim_soon(self) -> None:
        """From any thread: a slot waits for the answer to another claim."""
        with contextlib.suppress(RuntimeError):  # the worker has ended
            self._loop.call_soon_threadsafe(self._freed.set)

    async def _wait_for_room(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._claiming.limits.wait(self._settings.poll or _QUICK)):
                await self._freed.wait()

    async def _idle(self, request: ClaimRequest) -> None:
        """Wait for a task to claim, for room, or for the end."""
        if self._freed.is_set():
            return
        longest = self._settings.poll or rest(self._claim_took, _QUICK, _SLOW)
        longest = self._claiming.limits.next_token(longest)  # `request` leaves out the types that have none
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
            await self._away(waited)
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
            log.warning("drained; left in the queue: %s", left)
        else:
            log.info("drained: the queue is empty")
        self.stop()

    # --- look around

    async def _look(self) -> None:
        """Obey the switches. A worker that is idle does so before it claims (`_claim_and_start`), and not here."""
        while True:
            await self._patiently(self._registration.make_types_known)
            began, pause = self._clock(), self._look_interval
            paused = self._claiming.is_paused
            if paused or self._executors.queue.is_closed or began < self._busy_until:
                await self._patiently(self._obey)
                pause = rest(self._clock() - began, _LOOK, _PAUSED) if paused else pause
            await asyncio.sleep(pause)

    def controls_changed(self, *, hold: bool) -> "Future[None]":
        """Obey the switches now, and start nothing before if `hold`. From any thread of this process."""
        obeyed: Future[None] = Future()
        if hold:
            self._holds += 1
            self._executors.queue.close()

        async def obey() -> None:
            await self._patiently(self._obey)
            obeyed.set_result(None)

        def look() -> None:
            self._looks.add(looking := asyncio.ensure_future(obey()))
            looking.add_done_callback(self._looks.discard)

        try:
            self._loop.call_soon_threadsafe(look)
        except RuntimeError:  # the worker has ended
            obeyed.set_result(None)
        return obeyed

    async def _obey(self) -> None:
        holds = self._holds
        await self._claiming.obey()
        queue = self._executors.queue
        queue.recall(self._is_held_back)  # before it is reopened: an executor may have taken them before it was closed
        for run in queue.take_back(self._is_held_back):
            self._settler.report(run, HANDED_BACK)
        if holds == self._holds:  # else these switches may be older than the last pause
            queue.reopen()
        if self._claiming.dismissed and not self._stopping.is_set():
            log.info("drain requested: claiming no more tasks")
            self.dismissed = True
            self.stop()

    def _is_held_back(self, run: Run) -> bool:
        return self._claiming.is_held_back(run.task)

    def _is_out_of_date(self) -> bool:
        return self._clock() - self._claiming.obeyed_at >= self._look_interval * _STALE / _LOOK

    async def _check_unknown_types(self) -> None:
        while True:
            began = self._clock()
            if self._is_out_of_date():
                await self._patiently(self._obey)
            await self._patiently(self._handle_unknown_types)
            await asyncio.sleep(self._unknown_types.pause(self._clock() - began))

    async def _handle_unknown_types(self) -> None:
        self._registration.failed += await self._unknown_types.check()

    async def _beat(self) -> None:
        while True:
            began = self._clock()
            await self._patiently(self._announce)
            shortest = self._settings.heartbeat
            idle = began >= self._busy_until and not len(self._held)
            await asyncio.sleep(rest(self._clock() - began, shortest, 3 * shortest) if idle else shortest)

    async def _announce(self) -> None:
        await self._store_time.look()
        running = [run.task.id for run in self._executors.queue.running()]
        await self._registration.announce(running, waiting=len(self._executors.queue))

    async def _pulse(self) -> None:
        while True:
            self.alive_at = self._clock()
            await asyncio.sleep(_PULSE)

    async def _patiently(self, trip: Any) -> None:
        """Go to the store; if it is away, say so and go on: the next round tries again."""
        try:
            await trip()
        except StorageError as error:
            await self._away(error)

    async def _away(self, error: StorageError) -> None:
        if isinstance(error, NewerFormat) and not self._stopping.is_set():
            raise error  # the store stays as it is: this build has to go
        pause = self._backoff.next()
        log.warning("the store is unreachable; retrying in %.1f s: %s", pause, error)
        await asyncio.sleep(pause)

    # --- the end

    async def _finish(self) -> None:
        """Hand back what has not started, wait for what runs, hand back what does not end in time.

        A store that does not answer is not waited for longer than the grace period and `_LAST_ANSWER`.
        """
        self._registration.status = "draining"
        told = [
            asyncio.create_task(self._patiently(self._announce)),
            asyncio.create_task(self._hand_back(self._executors.steal())),
        ]
        await self._wait_for_runs()
        left_over = [run for run in self._held.runs() if not run.settled]
        for run in left_over:
            run.settled = True
            self._executors.cancel(run)
        told.append(asyncio.create_task(self._hand_back(left_over)))
        if not await bounded(self._leave(told), _ABORT_ANSWER if self._aborting.is_set() else _LAST_ANSWER):
            log.warning("the store has not answered: what was not handed back runs again when its lease is over")
        abandon(told)

    async def _leave(self, told: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*told)
        with contextlib.suppress(StorageError):
            await self._registration.leave()

    async def _wait_for_runs(self) -> None:
        """Until nothing is held, the grace period is over, or the worker is told to abort."""
        until = self._clock() + self._settings.grace
        while len(self._held) and not self._aborting.is_set() and (left := until - self._clock()) > 0:
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
            self._held.remove(run)
        self._freed.set()


def _handlers(registry: Registry, settings: WorkerSettings) -> dict[str, Handler]:
    handlers = {handler.type: handler for handler in registry}
    missing = [type for type in settings.types if type not in handlers]
    if missing:
        raise InvalidSetting(f"there is no handler for {', '.join(missing)}; there are: {', '.join(sorted(handlers))}")
    if settings.types:
        handlers = {type: handlers[type] for type in settings.types}
    for handler in handlers.values():
        if handler.options.executor is Executor.PROCESS:
            check_reachable(handler)
    return handlers


@contextlib.asynccontextmanager
async def _background(*work: Coroutine[Any, Any, None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Work that goes on beside the block and ends with it."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await ended(tasks, _CANCELLATION)
        abandon(tasks)


async def _first(main: Coroutine[Any, Any, None], failed: list[asyncio.Task[None]]) -> None:
    """Run `main` to its end, unless something beside it breaks first."""
    running = asyncio.create_task(main)
    try:
        await asyncio.wait([running, *failed], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not running.done():
            running.cancel()
            await ended([running], _CANCELLATION)
        abandon([running])
    for task in [*failed, running]:
        if task.done() and task.cancelled():
            raise WorkerCancelled("something cancelled what the worker does in the background; restart the worker")
        if task.done():
            task.result()
