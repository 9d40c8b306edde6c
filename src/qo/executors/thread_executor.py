"""Runs plain functions in threads. A thread cannot be killed, so one that ignores its cancellation is abandoned."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from qo import tracing
from qo.clock import Clock, boot_clock
from qo.codec import plain_task
from qo.errors import Cancelled
from qo.executors.handler_thread import AttemptLoop, ThreadException, call_without_loop
from qo.executors.run import UNSTARTED, Run, RunOutcome, TimedOut, describe, encode_result
from qo.executors.start_queue import StartQueue
from qo.hooks import Hooks, WorkerContext, call_through, working
from qo.running_task import running, running_attempt
from qo.tasks import Executor

log = logging.getLogger("qo.worker")

# Several threads with short runs spend their time contending for the GIL, so quick runs share one thread.
_MAX_QUICK_RUN, _SLOW_RUN = 0.001, 0.01  # seconds
_RUN_TIME_WEIGHT = 0.1  # weight of the latest run in the average run time


class ThreadExecutor:
    """Starts threads on demand and reuses them."""

    kind = Executor.THREAD

    def __init__(
        self,
        queue: StartQueue,
        *,
        result_limit: Callable[[], int],
        hooks: Hooks,
        worker: Callable[[], WorkerContext],
        clock: Clock = boot_clock,
    ) -> None:
        self._queue, self._limit, self._clock = queue, result_limit, clock
        self._hooks, self._worker = hooks, worker
        self._handed: deque[Run] = deque()  # runs for idle threads
        self._wake = threading.Condition(threading.Lock())
        self._idle = 0
        self._live: set[Run] = set()
        self._guard = threading.Lock()  # serializes raising an exception in a run's thread and the end of the run
        self._closed = False
        self._usual = _SLOW_RUN  # average seconds of a recent run
        self._ended = self._ended_before = 0
        self._pid = os.getpid()

    def pull(self) -> bool:
        """Give the first run to an idle thread or to a new one."""
        run = None if self._closed else self._queue.take(self)
        if run is None:
            return False
        with self._wake:
            if self._idle > len(self._handed):
                self._handed.append(run)
                self._wake.notify()
                return self._usual > _MAX_QUICK_RUN
        try:
            threading.Thread(target=self._work, args=(run,), name=f"qo-{type(self).__name__}", daemon=True).start()
        except RuntimeError as error:  # "can't start new thread"
            log.error("cannot start a thread for a handler: %s; handing its task back", error)  # noqa: TRY400
            self._queue.release_slot(run)
            run.done(run, UNSTARTED)
            return False
        return self._usual > _MAX_QUICK_RUN

    def _work(self, first: Run) -> None:
        """The main function of a thread. It holds a slot while it runs a handler, and none while it waits."""
        state = self._open_state()
        run: Run | None = first
        try:
            while run is not None:
                if not self._attempt(run, state):
                    return
                run = self._queue.take(self, run) or self._wait()
        finally:
            self._close_state(state)

    def _wait(self) -> Run | None:
        """Wait for the next run for this thread. Returns None when the executor closes."""
        self._queue.dispatch()
        with self._wake:
            self._idle += 1
            self._wake.wait_for(lambda: self._closed or self._handed)
            self._idle -= 1
            return self._handed.popleft() if self._handed else None

    def _attempt(self, run: Run, state: object) -> bool:
        """Run one task. Returns False if the run was abandoned in the meantime, so the thread must end."""
        if len(self._queue) and (self._usual > _MAX_QUICK_RUN or not self._queue.is_next(self)):
            self._queue.dispatch()
        run.handle = threading.get_ident()
        self._live.add(run)
        outcome: RunOutcome | None = None
        error: BaseException | None = None
        while True:  # the exception of `cancel` may be raised anywhere up to the end of `_finish`
            try:
                if error is not None and outcome is None:
                    outcome = run.outcome_of(error)
                outcome = outcome or self._call(run, state)
                ours = self._finish(run)
                break
            except BaseException as caught:  # noqa: BLE001 - sys.exit ends the attempt, not the worker
                error = error or caught
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and this is the child: it must not settle the task
        if run.began is None:  # `begin` refused it, or was not reached
            if error is not None and not run.settled:
                log.error("cannot start a handler: %s; handing its task back", describe(error))
                run.done(run, UNSTARTED)
            return True
        self._usual += (self._clock() - run.began - self._usual) * _RUN_TIME_WEIGHT
        self._ended += 1
        if ours:
            run.done(run, outcome)
        else:
            self._queue.abandoned_ended(run)
        return ours

    def tick(self) -> None:
        """Use more threads if a run waits and none has ended since the last call, because runs are not quick.

        Cancel runs again whose exception was swallowed.
        """
        self._cancel_again()
        if self._ended == self._ended_before and self._queue.is_next(self):
            self._usual = _SLOW_RUN
            self._queue.dispatch()
        self._ended_before = self._ended

    def _finish(self, run: Run) -> bool:
        """End the run, so that no exception is raised in this thread later. Returns False if it was abandoned."""
        with self._guard:
            self._live.discard(run)
            if run.thread_exception is not None:
                run.thread_exception.clear()
            return not run.abandoned

    def _open_state(self) -> object:
        """Create the state of a new thread."""
        return AttemptLoop()

    def _close_state(self, state: object) -> None:
        if isinstance(state, AttemptLoop):
            state.close()

    def _call(self, run: Run, state: object) -> RunOutcome:
        worker = self._worker()
        if working.get(None) is not worker:
            working.set(worker)  # in the context of this thread, which each attempt copies
        context = copy_context()
        context.run(_enter, run)
        if not self._queue.begin(run):
            return RunOutcome()
        if self._hooks.middleware and isinstance(state, AttemptLoop):
            run.loop = state
            return run.outcome_after_middleware(state.run(self._call_through(run), context), self._limit())
        args, kwargs = run.handler.arguments.decode(run.task.payload)
        return encode_result(context.run(tracing.call, run.task, run.handler.function, args, kwargs), self._limit())

    async def _call_through(self, run: Run) -> Any:
        async def call() -> Any:
            args, kwargs = run.handler.arguments.decode(run.task.payload)
            result = call_without_loop(run.handler.function, args, kwargs)
            run.handler_returned = True
            return result

        with tracing.running(run.task):
            return await call_through(self._hooks.middleware, plain_task(run.task), call)

    def cancel(self, run: Run) -> None:
        """Raise TimedOut or Cancelled in the run's thread. It takes effect after a blocking C call has returned."""
        with self._guard:
            if run in self._live and isinstance(run.handle, int):
                run.thread_exception = ThreadException(run.handle, TimedOut if run.timed_out else Cancelled)
                run.thread_exception.set()
                _wake(run)

    def _cancel_again(self) -> None:
        with self._guard:
            for run in self.live():
                if run.thread_exception is not None and run.thread_exception.set_again_if_swallowed():
                    _wake(run)

    def abandon(self, run: Run) -> None:
        """Stop waiting for the run's handler and release its slot. Its thread ends when the handler returns."""
        with self._guard:
            if run not in self._live:
                return
            self._live.discard(run)
            run.abandoned = True
        self._queue.release_slot(run)
        self._queue.dispatch()

    def live(self) -> list[Run]:
        return list(self._live)

    def close(self) -> None:
        self._closed = True
        with self._wake:
            self._wake.notify_all()

    def join(self, timeout: float) -> None:
        """Threads are not waited for: their handlers may run on, and idle threads have nothing left to do."""


def _wake(run: Run) -> None:
    if run.loop is not None:
        run.loop.wake()


def _enter(run: Run) -> None:
    """Set the context variables that handlers read during their attempt."""
    running.set(run.task)
    running_attempt.set(run)
