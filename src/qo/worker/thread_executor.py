"""Plain functions, each in a thread. A thread cannot be killed: one that outlives its time is left behind."""

import ctypes
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from qo import tracing
from qo.clock import Clock, boot_clock
from qo.tasks import Executor, running
from qo.worker.run import UNSTARTED, Run, RunOutcome, TimedOut, encode_result
from qo.worker.start_queue import StartQueue

log = logging.getLogger("qo.worker")

# Threads that all have little to do spend their time fighting for the interpreter: quick runs share one.
_QUICK, _SLOW = 0.001, 0.01  # seconds
_WEIGHT = 0.1


class ThreadExecutor:
    """Threads are started as they are needed and stay for the next run."""

    kind = Executor.THREAD

    def __init__(self, queue: StartQueue, *, result_limit: Callable[[], int], clock: Clock = boot_clock) -> None:
        self._queue, self._limit, self._clock = queue, result_limit, clock
        self._handed: deque[Run] = deque()  # for threads that are idle
        self._wake = threading.Condition(threading.Lock())
        self._idle = 0
        self._live: set[Run] = set()
        self._guard = threading.Lock()  # between throwing into a run and its end
        self._closed = False
        self._usual = _SLOW  # seconds a run takes, lately
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
                return self._usual > _QUICK
        try:
            threading.Thread(target=self._work, args=(run,), name=f"qo-{type(self).__name__}", daemon=True).start()
        except RuntimeError as error:  # "can't start new thread"
            log.error("no thread can be started for a handler: %s; its task is handed back", error)  # noqa: TRY400
            self._queue.give(run)
            run.done(run, UNSTARTED)
            return False
        return self._usual > _QUICK

    def _work(self, first: Run) -> None:
        """A thread's life. It holds a slot while it works, and none while it waits."""
        keeper = self._enter()
        run: Run | None = first
        try:
            while run is not None:
                if not self._attempt(run, keeper):
                    return
                run = self._queue.take(self, run) or self._wait()
        finally:
            self._leave(keeper)

    def _wait(self) -> Run | None:
        """The next run that is handed to this thread; None when the executor closes."""
        self._queue.pump()
        with self._wake:
            self._idle += 1
            self._wake.wait_for(lambda: self._closed or self._handed)
            self._idle -= 1
            return self._handed.popleft() if self._handed else None

    def _attempt(self, run: Run, keeper: object) -> bool:
        """Run one task; False if the thread was given up on meanwhile and must end."""
        if len(self._queue) and (self._usual > _QUICK or not self._queue.is_next(self)):
            self._queue.pump()
        run.handle = threading.get_ident()
        self._live.add(run)
        outcome: RunOutcome | None = None
        error: BaseException | None = None
        while True:  # what `cancel` throws may strike anywhere up to the end of `_finish`, but only once
            try:
                if error is not None and outcome is None:
                    outcome = run.outcome_of(error)
                outcome = outcome or self._call(run, keeper)
                ours = self._finish(run)
                break
            except BaseException as caught:  # noqa: BLE001 - sys.exit ends the attempt, not the worker; it goes to the store
                error = error or caught
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and its child came back: it must not settle anything
        if run.began is None:
            return True  # it was refused
        self._usual += (self._clock() - run.began - self._usual) * _WEIGHT
        self._ended += 1
        if ours:
            run.done(run, outcome)
        else:
            self._queue.came_back(run)
        return ours

    def tick(self) -> None:
        """Nothing ended since the last look and something waits: runs are not quick after all."""
        if self._ended == self._ended_before and self._queue.is_next(self):
            self._usual = _SLOW
            self._queue.pump()
        self._ended_before = self._ended

    def _finish(self, run: Run) -> bool:
        """From here on nothing is thrown into this thread. False: the run was disowned."""
        with self._guard:
            self._live.discard(run)
            if run.struck:
                _throw(threading.get_ident(), None)
            return not run.disowned

    def _enter(self) -> object:
        """What a thread keeps through its life; nothing here."""
        return None

    def _leave(self, keeper: object) -> None: ...

    def _call(self, run: Run, keeper: object) -> RunOutcome:  # noqa: ARG002 - for executors whose threads keep something
        context = copy_context()
        context.run(running.set, run.task)
        if not self._queue.begin(run):
            return RunOutcome()
        args, kwargs = run.handler.arguments.decode(run.task.payload)
        return encode_result(context.run(tracing.call, run.task, run.handler.function, args, kwargs), self._limit())

    def cancel(self, run: Run) -> None:
        """Throw into the thread. It hears it at its next step of Python; a call that blocks in C ends first."""
        with self._guard:
            if run in self._live and isinstance(run.handle, int):
                run.struck = True
                _throw(run.handle, TimedOut)

    def disown(self, run: Run) -> None:
        """The run will not end: its slot goes to another, and its thread ends when it comes back."""
        with self._guard:
            if run not in self._live:
                return
            self._live.discard(run)
            run.disowned = True
        self._queue.give(run)
        self._queue.pump()

    def live(self) -> list[Run]:
        return list(self._live)

    def close(self) -> None:
        self._closed = True
        with self._wake:
            self._wake.notify_all()


def _throw(thread: int, kind: type[BaseException] | None) -> None:
    """Raise `kind` in another thread; None takes back what has not been heard yet."""
    thrown = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), thrown)
