"""Which executor runs what, and what becomes of one that hangs."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from qo.clock import Clock, boot_clock, monotonic_clock
from qo.errors import QoError
from qo.model import lost_its_process
from qo.tasks import Executor
from qo.worker.async_executor import FAREWELL, LoopExecutor
from qo.worker.process_executor import ProcessExecutor
from qo.worker.run import UNSTARTED, Run, is_reachable
from qo.worker.run_table import RunTable
from qo.worker.settings import WorkerSettings
from qo.worker.start_queue import StartQueue
from qo.worker.thread_executor import ThreadExecutor

log = logging.getLogger("qo.worker")
MOST_LEFT_BEHIND = 100  # threads; a worker that lost more of them is beyond repair


class WorkerStuck(QoError):
    """The worker cannot go on: its store does not answer, or its handlers have used up its threads."""


class WorkerCancelled(WorkerStuck):
    """A handler cancelled what the worker does on its own event loop."""


class Executors:
    def __init__(
        self,
        settings: WorkerSettings,
        *,
        result_limit: Callable[[], int],  # bytes; a server tells it with its first answer
        clock: Clock = boot_clock,
        table: RunTable | None = None,
    ) -> None:
        self._settings, self._limit, self._clock = settings, result_limit, clock
        self.queue = StartQueue(settings.concurrency, clock=clock, table=table)
        self._made: dict[Executor, LoopExecutor | ThreadExecutor] = {}
        self._stalled: list[LoopExecutor] = []
        self._left_behind = 0

    def start(self, runs: Iterable[Run], *, cut: Collection[str] = (), is_full: bool = False) -> None:
        """Start runs as slots become free, in rank order. `cut` and `is_full` tell what the claim left in the store."""
        ready = []
        for run in runs:
            try:
                run.executor = self._get(_kind(run))
            except RuntimeError as error:  # "can't start new thread"
                log.error("no thread can be started for handlers: %s; their tasks are handed back", error)  # noqa: TRY400
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

    def disown(self, run: Run) -> None:
        """The handler does not heed its cancellation: go on without it."""
        for executor in self._all():
            if run in executor.live():
                executor.disown(run)
                self._left_behind += 1
        if self._left_behind > MOST_LEFT_BEHIND:
            raise WorkerStuck(f"{self._left_behind} handlers did not end when their time was up; restart the worker")

    def steal(self) -> list[Run]:
        """Take back everything that has not started."""
        handed = [run for executor in self._all() if isinstance(executor, LoopExecutor) for run in executor.steal()]
        for run in handed:
            self.queue.give(run)
        return handed + self.queue.take_back()

    def sidestep(self) -> None:
        """If a handler blocks the thread or the event loop that others wait for, they get a fresh one."""
        for executor in self._made.values():
            if isinstance(executor, ThreadExecutor):
                executor.tick()
        loop = self._made.get(Executor.ASYNC)
        if isinstance(loop, LoopExecutor) and loop.is_stalled():
            self._stalled.append(loop)
            self._made[Executor.ASYNC] = fresh = LoopExecutor(self.queue, result_limit=self._limit, clock=self._clock)
            self.queue.redirect(loop, fresh)
            fresh.start(loop.steal())
            self.queue.pump()

    def innocent(self, blocker: Run) -> list[Run] | None:
        """If this run blocks a loop: leave that loop behind, and say who was on it through no fault of theirs."""
        for loop in self._stalled:
            if loop.is_stalled() and loop.blocker() is blocker:
                others = [run for run in loop.live() if run is not blocker]
                loop.abandon()
                self._stalled.remove(loop)
                self._left_behind += 1
                return others
        return None

    async def close(self) -> None:
        """All together: each blocked event loop is waited for, and a worker has only a few seconds to end."""
        for executor in self._all():
            executor.close()
        loops = [executor for executor in self._all() if isinstance(executor, LoopExecutor)]
        await asyncio.to_thread(_join, loops, monotonic_clock() + FAREWELL)


def _join(loops: Iterable[LoopExecutor], until: float) -> None:
    for loop in loops:
        loop.join(until - monotonic_clock())


def _kind(run: Run) -> Executor:
    """A task whose last attempt took its process with it may do so again: it gets one of its own."""
    suspect = lost_its_process(run.task) and is_reachable(run.handler)
    return Executor.PROCESS if suspect else run.handler.options.executor
