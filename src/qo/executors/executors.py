"""Chooses the executor of each run, and replaces the event loop of async handlers if one of them blocks it."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from qo.clock import Clock, boot_clock, monotonic_clock
from qo.errors import InvalidSetting
from qo.executors import lifespan, loop_executor
from qo.executors.lifespan import LifespanFailed
from qo.executors.loop_executor import LoopExecutor
from qo.executors.process_executor import ProcessExecutor, check_reachable
from qo.executors.run import UNSTARTED, Run
from qo.executors.run_table import RunTable
from qo.executors.start_queue import StartQueue
from qo.executors.thread_executor import ThreadExecutor
from qo.hooks import Hooks, WorkerContext, is_reachable
from qo.model import Task, lost_its_process
from qo.tasks import Executor, Handler, Registry

log = logging.getLogger("qo.worker")


class Executors:
    """Chooses the executor of each run, and replaces event loops that a handler blocks."""

    def __init__(
        self,
        concurrency: int,
        *,
        result_limit: Callable[[], int],  # bytes; with `http://` known after the server's first answer
        hooks: Hooks,
        worker_id: str,
        captures_logs: bool = False,
        tasks_per_process: int = 1000,
        clock: Clock = boot_clock,
        table: RunTable | None = None,
    ) -> None:
        self._captures_logs, self._tasks_per_process = captures_logs, tasks_per_process
        self._limit, self._clock = result_limit, clock
        self._hooks, self._worker_id = hooks, worker_id
        self._context = WorkerContext(worker_id)
        hooks.is_in_use = True
        if table is not None:
            table.hooks = hooks
        self.queue = StartQueue(concurrency, clock=clock, table=table)
        self._made: dict[Executor, LoopExecutor | ThreadExecutor] = {}
        self._stalled: list[LoopExecutor] = []
        self.abandoned = 0  # threads that were given up because their handlers do not stop

    async def open(self) -> None:
        """Enter the lifespan, if the app has one. Raises LifespanFailed."""
        if self._hooks.lifespan is None:
            return
        executor = self._get(Executor.ASYNC)
        entering = executor.lifespan if isinstance(executor, LoopExecutor) else None
        if entering is not None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(entering.entered), lifespan.ENTER_TIMEOUT)
            except TimeoutError:
                raise LifespanFailed(f"the lifespan did not yield within {lifespan.ENTER_TIMEOUT:g} s") from None

    def worker_context(self) -> WorkerContext:
        """The worker as handlers in threads see it, with the state of the newest lifespan. From any thread."""
        if self._hooks.lifespan is None:
            return self._context
        executor = self._made.get(Executor.ASYNC)
        entered = executor.lifespan.entered if isinstance(executor, LoopExecutor) and executor.lifespan else None
        if entered is not None and entered.done() and entered.exception() is None:
            self._context = entered.result()
        return self._context

    def start(
        self, runs: Iterable[Run], *, cut: Collection[str] = (), is_full: bool = False, others: Iterable[Task] = ()
    ) -> None:
        """Start runs in rank order as slots become free. The other arguments are those of `StartQueue.put`."""
        self.queue.put([run for run in runs if self._assign(run)], cut=cut, is_full=is_full, others=others)

    def start_first(self, run: Run) -> None:
        """Start a run before the waiting ones."""
        if self._assign(run):
            self.queue.put_first(run)

    def _assign(self, run: Run) -> bool:
        try:
            run.executor = self._get(self._kind(run))
        except RuntimeError as error:  # "can't start new thread"
            log.error("cannot start a thread for handlers: %s; handing their tasks back", error)  # noqa: TRY400
            run.done(run, UNSTARTED)
            return False
        return True

    def _get(self, kind: Executor) -> LoopExecutor | ThreadExecutor:
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def _make(self, kind: Executor) -> LoopExecutor | ThreadExecutor:
        match kind:
            case Executor.ASYNC:
                return self._new_loop()
            case Executor.THREAD:
                return ThreadExecutor(
                    self.queue,
                    result_limit=self._limit,
                    hooks=self._hooks,
                    worker=self.worker_context,
                    clock=self._clock,
                )
            case Executor.PROCESS:
                return ProcessExecutor(
                    self.queue,
                    result_limit=self._limit,
                    hooks=self._hooks,
                    worker=self.worker_context,
                    captures_logs=self._captures_logs,
                    tasks_per_process=self._tasks_per_process,
                    clock=self._clock,
                )

    def _new_loop(self) -> LoopExecutor:
        return LoopExecutor(
            self.queue,
            result_limit=self._limit,
            hooks=self._hooks,
            worker_id=self._worker_id,
            clock=self._clock,
        )

    def _all(self) -> list[LoopExecutor | ThreadExecutor]:
        return [*self._made.values(), *self._stalled]

    def cancel(self, run: Run) -> None:
        for executor in self._all():
            if run in executor.live():
                executor.cancel(run)

    def abandon(self, run: Run) -> None:
        """Stop waiting for a handler that ignored its cancellation."""
        for executor in self._all():
            if run in executor.live():
                executor.abandon(run)
                self.abandoned += 1

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
        for recovered in self._stalled:
            if not recovered.is_stalled() and not recovered.live():
                recovered.close()  # its lifespan ends now, not when the worker stops
        self._stalled = [each for each in self._stalled if each.is_alive()]
        loop = self._made.get(Executor.ASYNC)
        if isinstance(loop, LoopExecutor) and loop.is_stalled():
            self._stalled.append(loop)
            self._made[Executor.ASYNC] = fresh = self._new_loop()
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
                self.abandoned += 1
                return others
        return None

    def is_blocking(self, run: Run) -> bool:
        """Whether the handler of this run seems to block its event loop. If it does, `bystanders` returns them soon."""
        return any(isinstance(executor, LoopExecutor) and executor.is_blocked_by(run) for executor in self._all())

    async def close(self) -> None:
        """Close all executors concurrently, so that together they need only the time of one.

        Child processes and event loops with a lifespan get LEAVE_TIMEOUT more.
        """
        for executor in self._all():
            executor.close()
        timeout = loop_executor.LOOP_CLOSE_TIMEOUT
        if self._hooks.lifespan is not None:
            timeout += lifespan.LEAVE_TIMEOUT
        executors, until = self._all(), monotonic_clock() + timeout
        try:
            await asyncio.to_thread(_join, executors, until)
        except RuntimeError:  # the interpreter is exiting and starts no threads, so blocking the loop is harmless
            _join(executors, until)

    def _kind(self, run: Run) -> Executor:
        """The kind of executor. A task whose last attempt may have killed its process runs in a child process."""
        suspect = lost_its_process(run.task) and is_reachable(run.handler.function) and self._hooks.are_reachable
        return Executor.PROCESS if suspect else run.handler.options.executor


def handlers_of(registry: Registry, types: Collection[str]) -> dict[str, Handler]:
    """The handlers of these types, or all, by type. Raises InvalidSetting if one is missing or cannot be run."""
    handlers = {handler.type: handler for handler in registry}
    missing = [type for type in types if type not in handlers]
    if missing:
        raise InvalidSetting(f"no handler for {', '.join(missing)}; handlers exist for: {', '.join(sorted(handlers))}")
    if types:
        handlers = {type: handlers[type] for type in types}
    check_reachable(handlers.values(), registry.hooks)
    return handlers


def _join(executors: Iterable[LoopExecutor | ThreadExecutor], until: float) -> None:
    for executor in executors:
        executor.join(until - monotonic_clock())
