"""Chooses the executor of each run. Runs async handlers on their own event loop, and replaces it if one blocks it."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NoReturn

from qo import tracing
from qo.clock import Clock, boot_clock, monotonic_clock
from qo.errors import InvalidSetting, QoError
from qo.model import lost_its_process
from qo.tasks import Executor, running
from qo.worker.process_executor import ProcessExecutor
from qo.worker.run import UNSTARTED, Run, RunOutcome, encode_result, is_reachable
from qo.worker.run_table import RunTable
from qo.worker.settings import WorkerSettings
from qo.worker.start_queue import StartQueue
from qo.worker.thread_executor import ThreadExecutor

log = logging.getLogger("qo.worker")
_CANCEL_TIMEOUT = 1.0  # seconds for cancelled handlers to end
LOOP_CLOSE_TIMEOUT = 2 * _CANCEL_TIMEOUT  # seconds for their event loop to end
STALL_TIMEOUT = 2.0  # seconds without an answer after which a loop gets no new runs


class LoopExecutor:
    """Runs async handlers on a separate event loop, so that they cannot block claims and renewals."""

    kind = Executor.ASYNC

    def __init__(self, queue: StartQueue, *, result_limit: Callable[[], int], clock: Clock = boot_clock) -> None:
        self._queue, self._limit, self._clock = queue, result_limit, clock
        self._handed: deque[Run] = deque()  # runs that hold slots and that the loop has not started yet
        self._started: set[Run] = set()
        self._pid = os.getpid()
        self._loop = _handlers_loop()
        self._ticked_at, self._pinged_at = clock(), 0.0
        self._starting = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._live, name="qo-handlers", daemon=True)
        self._thread.start()

    def pull(self) -> bool:
        run = None if self._abandoned else self._queue.take(self)
        if run is None:
            return False
        self.start([run])
        return True

    def start(self, runs: list[Run]) -> None:
        """Start runs that hold slots."""
        self._handed.extend(runs)
        if not self._starting:
            self._starting = True
            self._loop.call_soon_threadsafe(self._start_handed)

    def _start_handed(self) -> None:
        self._starting = False
        while self._handed and not self._abandoned:
            try:
                run = self._handed.popleft()
            except IndexError:  # `take_unstarted` took it
                return
            self._start(run)

    def _start(self, run: Run) -> None:
        self._started.add(run)
        run.handle = asyncio.Task(self._attempt(run), loop=self._loop)

    async def _attempt(self, run: Run) -> None:
        running.set(run.task)
        if not self._queue.begin(run):
            self._started.discard(run)
            self._queue.dispatch()
            return
        try:
            args, kwargs = run.handler.arguments.decode(run.task.payload)
            with tracing.running(run.task):
                result = await run.handler.function(*args, **kwargs)
            outcome = encode_result(result, self._limit())
        except BaseException as error:  # noqa: BLE001 - sys.exit must not end the loop; the store gets the outcome
            outcome = self._cancelled_by_another(run, error) or run.outcome_of(error)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and this is the child: it must not settle the task
        self._started.discard(run)
        following = self._queue.take(self, run)
        if run.abandoned:
            self._queue.abandoned_ended(run)
        run.done(run, outcome)
        if following is not None:
            self._start(following)
        if len(self._queue) and (following is None or not self._queue.is_next(self)):
            self._queue.dispatch()

    def _cancelled_by_another(self, run: Run, error: BaseException) -> RunOutcome | None:
        """The outcome if a handler cancelled all tasks of the loop: each runs alone next time, to find that handler."""
        if not isinstance(error, asyncio.CancelledError) or run.cancelled or not is_reachable(run.handler):
            return None
        task = asyncio.current_task(self._loop)
        if task is None or not task.cancelling():
            return None  # the handler raised it
        return RunOutcome(error="cancelled by another handler or by itself", apart=True)

    def cancel(self, run: Run) -> None:
        task, run.cancelled = run.handle, True
        if isinstance(task, asyncio.Task):
            self._loop.call_soon_threadsafe(task.cancel)

    def take_unstarted(self) -> list[Run]:
        """Take back the runs that the loop has not started. They keep their slots."""
        unstarted = []
        while self._handed:
            try:
                unstarted.append(self._handed.popleft())
            except IndexError:
                break
        return unstarted

    def abandon(self, run: Run) -> None:
        """Stop waiting for the run's handler and release its slot."""
        if run in self._started:
            self._started.discard(run)
            run.abandoned = True
            self._queue.release_slot(run)
            self._queue.dispatch()

    # --- stalled loops

    def is_stalled(self) -> bool:
        """Ping the loop. Returns True if it has not answered for STALL_TIMEOUT: a handler blocks it."""
        now = self._clock()
        if self._ticked_at >= self._pinged_at:
            self._pinged_at = now
            self._loop.call_soon_threadsafe(self._tick)
        return now - self._pinged_at > STALL_TIMEOUT

    def _tick(self) -> None:
        self._ticked_at = self._clock()
        if self._abandoned:
            _stop(self._loop)

    def blocker(self) -> Run | None:
        """The run whose handler the loop executes at this moment."""
        current = asyncio.current_task(self._loop)
        return next((run for run in list(self._started) if run.handle is current), None)

    def live(self) -> list[Run]:
        return list(self._started)

    def abandon_loop(self) -> None:
        """Stop waiting for the blocked loop. If it unblocks, its handlers are cancelled and its thread ends."""
        self._abandoned = True
        for run in self.live():
            self.abandon(run)

    def close(self) -> None:
        """Stop the loop. A blocked thread ends when it unblocks, or with the process."""
        self._abandoned = True
        self._loop.call_soon_threadsafe(_stop, self._loop)

    def join(self, timeout: float) -> None:
        """Wait until the loop has ended."""
        self._thread.join(timeout=max(0.0, timeout))

    def _live(self) -> None:
        """Run the loop until it is stopped, then cancel what is left on it, as asyncio.run does."""
        while not self._abandoned:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - sys.exit in a callback must not stop the other handlers
                log.warning("a callback of a handler raised %s; the event loop continues", type(error).__name__)
        _allow_all(self._loop)
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_TIMEOUT))
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it ignored its cancellation; that is reported already
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


# --- the event loop that handlers share

_FORBIDDEN = ("stop", "close", "set_task_factory", "set_default_executor")  # these would affect all handlers


def _handlers_loop() -> asyncio.AbstractEventLoop:
    """An event loop that a handler cannot stop, close or reconfigure."""
    loop = asyncio.new_event_loop()
    loop.time = monotonic_clock  # type: ignore[method-assign]  # a handler may replace time.monotonic
    for name in _FORBIDDEN:
        setattr(loop, name, partial(_refuse, name))
    return loop


def _refuse(name: str, *_: object) -> NoReturn:
    raise InvalidSetting(
        f"a handler called loop.{name}(): other handlers share this event loop; use executor='process'"
    )


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    type(loop).stop(loop)


def _allow_all(loop: asyncio.AbstractEventLoop) -> None:
    """Restore the forbidden methods, so that the executor's thread can close its loop."""
    for name in _FORBIDDEN:
        vars(loop).pop(name, None)


MAX_ABANDONED = 100  # threads; a worker that abandoned more must be restarted


class WorkerStuck(QoError):
    """The worker cannot continue: its store does not answer, or its handlers block too many threads."""


class WorkerCancelled(WorkerStuck):
    """A handler cancelled tasks of the worker's own event loop."""


class Executors:
    """Chooses the executor of each run, and replaces event loops that a handler blocks."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        result_limit: Callable[[], int],  # bytes; with `http://` known after the server's first answer
        clock: Clock = boot_clock,
        table: RunTable | None = None,
    ) -> None:
        self._settings, self._limit, self._clock = settings, result_limit, clock
        self.queue = StartQueue(settings.concurrency, clock=clock, table=table)
        self._made: dict[Executor, LoopExecutor | ThreadExecutor] = {}
        self._stalled: list[LoopExecutor] = []
        self._abandoned = 0

    def start(self, runs: Iterable[Run], *, cut: Collection[str] = (), is_full: bool = False) -> None:
        """Start runs in rank order as slots become free. `cut` and `is_full` are those of `StartQueue.put`."""
        ready = []
        for run in runs:
            try:
                run.executor = self._get(_kind(run))
            except RuntimeError as error:  # "can't start new thread"
                log.error("cannot start a thread for handlers: %s; handing their tasks back", error)  # noqa: TRY400
                run.done(run, UNSTARTED)
            else:
                ready.append(run)
        self.queue.put(ready, cut=cut, is_full=is_full)

    def _get(self, kind: Executor) -> LoopExecutor | ThreadExecutor:
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Executor) -> LoopExecutor | ThreadExecutor:
        match kind:
            case Executor.ASYNC:
                return LoopExecutor(self.queue, result_limit=self._limit, clock=self._clock)
            case Executor.THREAD:
                return ThreadExecutor(self.queue, result_limit=self._limit, clock=self._clock)
            case Executor.PROCESS:
                return ProcessExecutor(
                    self.queue,
                    result_limit=self._limit,
                    tasks_per_process=self._settings.tasks_per_process,
                    clock=self._clock,
                )

    def _all(self) -> list[LoopExecutor | ThreadExecutor]:
        return [*self._made.values(), *self._stalled]

    def cancel(self, run: Run) -> None:
        for executor in self._all():
            if run in executor.live():
                executor.cancel(run)

    def abandon(self, run: Run) -> None:
        """Stop waiting for a handler that ignored its cancellation. Raises WorkerStuck after MAX_ABANDONED of them."""
        for executor in self._all():
            if run in executor.live():
                executor.abandon(run)
                self._abandoned += 1
        if self._abandoned > MAX_ABANDONED:
            raise WorkerStuck(f"{self._abandoned} handlers did not stop at their time limit; restart the worker")

    def take_unstarted(self) -> list[Run]:
        """Take back the runs that have not started."""
        handed = [
            run for executor in self._all() if isinstance(executor, LoopExecutor) for run in executor.take_unstarted()
        ]
        for run in handed:
            self.queue.release_slot(run)
        return handed + self.queue.take_back()

    def replace_stalled_loop(self) -> None:
        """If a handler blocks the thread or event loop that other runs wait for, give them another one."""
        for executor in self._made.values():
            if isinstance(executor, ThreadExecutor):
                executor.tick()
        loop = self._made.get(Executor.ASYNC)
        if isinstance(loop, LoopExecutor) and loop.is_stalled():
            self._stalled.append(loop)
            self._made[Executor.ASYNC] = fresh = LoopExecutor(self.queue, result_limit=self._limit, clock=self._clock)
            self.queue.redirect(loop, fresh)
            fresh.start(loop.take_unstarted())
            self.queue.dispatch()

    def bystanders(self, blocker: Run) -> list[Run] | None:
        """If `blocker` blocks a loop, abandon that loop and return the other runs on it; otherwise None."""
        for loop in self._stalled:
            if loop.is_stalled() and loop.blocker() is blocker:
                others = [run for run in loop.live() if run is not blocker]
                loop.abandon_loop()
                self._stalled.remove(loop)
                self._abandoned += 1
                return others
        return None

    async def close(self) -> None:
        """Close all executors at once, so that all event loops together get LOOP_CLOSE_TIMEOUT to end."""
        for executor in self._all():
            executor.close()
        loops = [executor for executor in self._all() if isinstance(executor, LoopExecutor)]
        await asyncio.to_thread(_join, loops, monotonic_clock() + LOOP_CLOSE_TIMEOUT)


def _join(loops: Iterable[LoopExecutor], until: float) -> None:
    for loop in loops:
        loop.join(until - monotonic_clock())


def _kind(run: Run) -> Executor:
    """The kind of executor. A task whose last attempt may have killed its process runs in a child process."""
    suspect = lost_its_process(run.task) and is_reachable(run.handler)
    return Executor.PROCESS if suspect else run.handler.options.executor
