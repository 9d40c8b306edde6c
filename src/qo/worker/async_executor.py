"""Async handlers, on an event loop of their own: whatever they do to it, claims and renewals go on."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from qo import tracing
from qo.clock import Clock, boot_clock, monotonic_clock
from qo.errors import InvalidSetting
from qo.tasks import Executor, running
from qo.worker.run import Run, RunOutcome, encode_result, is_reachable
from qo.worker.start_queue import StartQueue

log = logging.getLogger("qo.worker")
_LAST_WORDS = 1.0  # seconds cancelled handlers have to end
FAREWELL = 2 * _LAST_WORDS  # seconds their loop has
STALL = 2.0  # seconds without a tick after which a loop gets no new runs


class LoopExecutor:
    kind = Executor.ASYNC

    def __init__(self, queue: StartQueue, *, result_limit: Callable[[], int], clock: Clock = boot_clock) -> None:
        self._queue, self._limit, self._clock = queue, result_limit, clock
        self._handed: deque[Run] = deque()  # taken from the queue with their slots, for the loop to start
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
            except IndexError:  # stolen between the two looks
                return
            self._start(run)

    def _start(self, run: Run) -> None:
        self._started.add(run)
        run.handle = asyncio.Task(self._attempt(run), loop=self._loop)

    async def _attempt(self, run: Run) -> None:
        running.set(run.task)
        if not self._queue.begin(run):
            self._started.discard(run)
            self._queue.pump()
            return
        try:
            args, kwargs = run.handler.arguments.decode(run.task.payload)
            with tracing.running(run.task):
                result = await run.handler.function(*args, **kwargs)
            outcome = encode_result(result, self._limit())
        except BaseException as error:  # noqa: BLE001 - sys.exit must not end the loop; the outcome goes to the store
            outcome = self._cancelled_by_another(run, error) or run.outcome_of(error)
        if os.getpid() != self._pid:
            os._exit(0)  # the handler forked and its child came back: it must not settle anything
        self._started.discard(run)
        following = self._queue.take(self, run)
        if run.disowned:
            self._queue.came_back(run)
        run.done(run, outcome)
        if following is not None:
            self._start(following)
        if len(self._queue) and (following is None or not self._queue.is_next(self)):
            self._queue.pump()

    def _cancelled_by_another(self, run: Run, error: BaseException) -> RunOutcome | None:
        """A handler that cancels every task of the loop: which one it was shows when each runs alone."""
        if not isinstance(error, asyncio.CancelledError) or run.cancelled or not is_reachable(run.handler):
            return None
        task = asyncio.current_task(self._loop)
        if task is None or not task.cancelling():
            return None  # the handler raised it
        return RunOutcome(error="another handler, or its own, cancelled it", apart=True)

    def cancel(self, run: Run) -> None:
        task, run.cancelled = run.handle, True
        if isinstance(task, asyncio.Task):
            self._loop.call_soon_threadsafe(task.cancel)

    def steal(self) -> list[Run]:
        """Take back what was handed to the loop and has not started. The runs keep their slots."""
        stolen = []
        while self._handed:
            try:
                stolen.append(self._handed.popleft())
            except IndexError:
                break
        return stolen

    def disown(self, run: Run) -> None:
        """The run will not end: its slot goes to another."""
        if run in self._started:
            self._started.discard(run)
            run.disowned = True
            self._queue.give(run)
            self._queue.pump()

    # --- is the loop alive?

    def is_stalled(self) -> bool:
        """Ping the loop; True if it has not answered for a while. Something on it blocks."""
        now = self._clock()
        if self._ticked_at >= self._pinged_at:
            self._pinged_at = now
            self._loop.call_soon_threadsafe(self._tick)
        return now - self._pinged_at > STALL

    def _tick(self) -> None:
        self._ticked_at = self._clock()
        if self._abandoned:
            _stop(self._loop)

    def blocker(self) -> Run | None:
        """Whose handler is on the loop right now."""
        current = asyncio.current_task(self._loop)
        return next((run for run in list(self._started) if run.handle is current), None)

    def live(self) -> list[Run]:
        return list(self._started)

    def abandon(self) -> None:
        """Leave the blocked thread behind. Should it come to itself, its handlers are cancelled and it ends."""
        self._abandoned = True
        for run in self.live():
            self.disown(run)

    def close(self) -> None:
        """End the loop; a thread that is blocked ends when it comes to itself, or with the process."""
        self._abandoned = True
        self._loop.call_soon_threadsafe(_stop, self._loop)

    def join(self, timeout: float) -> None:
        """Wait until the loop has ended."""
        self._thread.join(timeout=max(0.0, timeout))

    def _live(self) -> None:
        """The thread's life: the loop's, then, as asyncio.run does, the last words of its handlers."""
        while not self._abandoned:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - sys.exit in a callback; the handlers beside it go on
                log.warning("a callback of a handler raised %s; the event loop goes on", type(error).__name__)
        _give_back(self._loop)
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_LAST_WORDS))
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it swallowed its cancellation; we have said so
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


# --- a loop that handlers share

_SHARED = ("stop", "close", "set_task_factory", "set_default_executor")  # what would change it for all of them


def _handlers_loop() -> asyncio.AbstractEventLoop:
    """A loop that no handler can stop, close or change for the others."""
    loop = asyncio.new_event_loop()
    loop.time = monotonic_clock  # type: ignore[method-assign]  # a handler may replace time.monotonic
    for name in _SHARED:
        setattr(loop, name, partial(_refuse, name))
    return loop


def _refuse(name: str, *_: object) -> NoReturn:
    raise InvalidSetting(f"loop.{name}() in a handler: other handlers share this event loop; use executor='process'")


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    type(loop).stop(loop)


def _give_back(loop: asyncio.AbstractEventLoop) -> None:
    """The handlers have ended, and the thread may end its loop."""
    for name in _SHARED:
        vars(loop).pop(name, None)
