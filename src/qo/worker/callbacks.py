"""Calls the callbacks of events in a thread, one after another. No callback can delay or change a task."""

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from qo.clock import Clock, boot_clock
from qo.codec import plain_task
from qo.executors.run import Run
from qo.hooks import Hooks, TaskEvent, TaskEventName, WorkerContext, WorkerEvent, WorkerEventName, working
from qo.model import FailureKind, Status, plural
from qo.running_task import running
from qo.transitions import Settlement, reason_of

log = logging.getLogger("qo.worker")
CALLBACK_TIMEOUT = 10.0  # seconds after which a callback is abandoned, with its thread
MAX_HANGS = 3  # a callback that was abandoned this often is not called again
MAX_WAITING = 10_000  # events; more are dropped
_CHECK_INTERVAL = 0.5  # seconds between two checks for a callback that hangs
_FINISH_INTERVAL = 0.01  # seconds between two checks whether the last callback has returned
_MAX_FINISH_TIME = 2.0  # seconds for waiting callbacks when the worker stops

Callback = Callable[[Any], object]
_EVENTS: dict[Status, TaskEventName] = {
    Status.COMPLETED: "task_succeeded",
    Status.PENDING: "task_retrying",
    Status.FAILED: "task_failed",
}


class CallbackThread:
    """`started` may be called from any thread, the other methods on the worker's event loop."""

    def __init__(self, hooks: Hooks, context: Callable[[], WorkerContext], *, clock: Clock = boot_clock) -> None:
        self._hooks, self._context, self._clock = hooks, context, clock
        self._queue: SimpleQueue[TaskEvent | WorkerEvent | None] = SimpleQueue()
        self._current: tuple[Callback, float] | None = None  # the running callback, and when it started
        self._handled = self._put = 0
        self._hangs: Counter[Callback] = Counter()
        self._dropped = 0
        self._generation = 0  # of the thread; an abandoned thread ends when its callback returns
        self._pid = os.getpid()

    @property
    def is_used(self) -> bool:
        return self._hooks.has_callbacks

    def started(self, run: Run) -> None:
        """A handler starts."""
        if self._hooks.callbacks("task_started"):
            self._call_soon(TaskEvent(name="task_started", task=plain_task(run.task), worker_id=self._context().id))

    def settled(self, settlement: Settlement) -> None:
        """The outcome of an attempt is stored."""
        change = settlement.change
        name = _EVENTS.get(change.to)
        if name is None or not self._hooks.callbacks(name):
            return
        is_failure = change.to is not Status.COMPLETED
        self._call_soon(
            TaskEvent(
                name=name,
                task=plain_task(settlement.task),
                worker_id=self._context().id,
                error=change.error,
                kind=reason_of(change) if is_failure else None,
                delay=change.delay if change.to is Status.PENDING else None,
                duration=settlement.ran,
            )
        )

    def cancelled(self, run: Run, duration: float | None) -> None:
        """A task was cancelled while its handler ran."""
        if self._hooks.callbacks("task_cancelled"):
            self._call_soon(
                TaskEvent(
                    name="task_cancelled",
                    task=plain_task(run.task),
                    worker_id=self._context().id,
                    kind=FailureKind.CANCELLED,
                    duration=duration,
                )
            )

    def worker(self, name: WorkerEventName) -> None:
        """The worker starts or stops."""
        if self._hooks.callbacks(name):
            self._call_soon(WorkerEvent(name=name, worker_id=self._context().id))

    def _call_soon(self, event: TaskEvent | WorkerEvent) -> None:
        if self._queue.qsize() >= MAX_WAITING:
            self._dropped += 1
            return
        self._put += 1
        self._queue.put(event)
        if not self._generation:
            self._start_thread()

    async def watch(self) -> None:
        """Abandon callbacks that hang, and log how many events were dropped."""
        while True:
            await asyncio.sleep(_CHECK_INTERVAL)
            current = self._current
            if current is not None and self._clock() - current[1] > CALLBACK_TIMEOUT:
                self._abandon(current[0])
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                log.warning("callbacks are too slow: dropped %s", plural(dropped, "event"))

    async def finish(self) -> None:
        """Wait until all events are handled, for a bounded time."""
        until = self._clock() + _MAX_FINISH_TIME
        while self._handled < self._put and self._clock() < until:  # noqa: ASYNC110 - a thread does the work
            await asyncio.sleep(_FINISH_INTERVAL)
        self._generation += 1
        self._queue.put(None)  # ends the thread
        if left := self._put - self._handled:
            log.warning(
                "the worker stops with %s whose callbacks were not called or did not return", plural(left, "event")
            )

    def _abandon(self, callback: Callback) -> None:
        self._current = None
        self._handled += 1
        self._hangs[callback] += 1
        further = "" if self._hangs[callback] < MAX_HANGS else "; it is not called again"
        log.error("the callback %s did not return within %g s%s", _name(callback), CALLBACK_TIMEOUT, further)
        self._start_thread()

    def _start_thread(self) -> None:
        self._generation += 1
        work = partial(self._work, self._generation)
        try:
            threading.Thread(target=work, name="qo-callbacks", daemon=True).start()
        except RuntimeError as error:  # "can't start new thread"
            log.error("cannot start a thread for callbacks: %s", error)  # noqa: TRY400

    def _work(self, generation: int) -> None:
        while generation == self._generation:
            event = self._queue.get()
            if event is None:
                return
            for callback in self._hooks.callbacks(event.name):
                if self._hangs[callback] < MAX_HANGS:
                    self._current = callback, self._clock()
                    copy_context().run(self._call, callback, event)
                if os.getpid() != self._pid:
                    os._exit(0)  # the callback forked and this is the child
                if generation != self._generation:
                    return
                self._current = None
            self._handled += 1

    def _call(self, callback: Callback, event: TaskEvent | WorkerEvent) -> None:
        working.set(self._context())
        if isinstance(event, TaskEvent):
            running.set(event.task)
        try:
            callback(event)
        except BaseException as error:
            kind = type(error).__name__
            log.exception("the callback %s of %s raised %s", _name(callback), event.name, kind)


def _name(callback: Callback) -> str:
    return getattr(callback, "__qualname__", repr(callback))
