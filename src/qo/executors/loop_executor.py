"""Runs async handlers on their own event loop, so that they cannot block claims and renewals."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, NoReturn

from qo import tracing
from qo.clock import Clock, boot_clock, monotonic_clock
from qo.codec import plain_task
from qo.errors import InvalidSetting
from qo.executors.lifespan import OpenLifespan
from qo.executors.run import UNSTARTED, Run, RunOutcome, encode_result
from qo.executors.start_queue import StartQueue
from qo.hooks import Hooks, WorkerContext, call_through, is_reachable, working
from qo.model import plural
from qo.running_task import running, running_attempt
from qo.tasks import Executor

log = logging.getLogger("qo.worker")
_CANCEL_TIMEOUT = 1.0  # seconds for cancelled handlers to end
LOOP_CLOSE_TIMEOUT = 2 * _CANCEL_TIMEOUT  # seconds for their event loop to end
STALL_TIMEOUT = 2.0  # seconds without an answer after which a loop gets no new runs
_USUAL_ANSWER_TIME = 0.5  # seconds; a loop is pinged every 0.1 s


class LoopExecutor:
    """Runs async handlers on a separate event loop, so that they cannot block claims and renewals."""

    kind = Executor.ASYNC

    def __init__(
        self,
        queue: StartQueue,
        *,
        result_limit: Callable[[], int],
        hooks: Hooks,
        worker_id: str,
        clock: Clock = boot_clock,
    ) -> None:
        self._queue, self._limit, self._hooks, self._clock = queue, result_limit, hooks, clock
        self._worker_id = worker_id
        self._context = copy_context()  # each attempt starts with a copy, so that handlers do not share variables
        self._context.run(working.set, WorkerContext(worker_id))
        self._lifespan: OpenLifespan | None = None
        self._handed: deque[Run] = deque()  # runs that hold slots and that the loop has not started yet
        self._started: set[Run] = set()
        self._pid = os.getpid()
        self._loop = _handlers_loop()
        if hooks.lifespan is not None:
            self._lifespan = self._open_lifespan()
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
        if self._lifespan is not None and not self._is_entered(self._lifespan):
            return
        while self._handed and not self._abandoned:
            try:
                run = self._handed.popleft()
            except IndexError:  # `take_unstarted` took it
                return
            self._start(run)

    def _start(self, run: Run) -> None:
        self._started.add(run)
        run.handle = asyncio.Task(self._attempt(run), loop=self._loop, context=self._context.copy())

    async def _attempt(self, run: Run) -> None:
        running.set(run.task)
        running_attempt.set(run)
        if not self._queue.begin(run):
            self._started.discard(run)
            self._queue.dispatch()
            return
        try:
            with tracing.running(run.task):
                if self._hooks.middleware:
                    call = partial(_call, run)
                    result = await call_through(self._hooks.middleware, plain_task(run.task), call)
                    outcome = run.outcome_after_middleware(result, self._limit())
                else:
                    args, kwargs = run.handler.arguments.decode(run.task.payload)
                    outcome = encode_result(await run.handler.function(*args, **kwargs), self._limit())
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

    # --- the lifespan

    @property
    def lifespan(self) -> OpenLifespan | None:
        return self._lifespan

    def _open_lifespan(self) -> OpenLifespan | None:
        """Enter the lifespan on this loop. Runs wait until it has yielded."""
        if self._hooks.lifespan is None:
            return None
        lifespan = OpenLifespan(self._hooks.lifespan, self._worker_id, self._clock)
        lifespan.entered.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._start_handed))
        self._loop.call_soon_threadsafe(lifespan.start)
        return lifespan

    def _is_entered(self, lifespan: OpenLifespan) -> bool:
        """Whether runs can start. If the lifespan failed, the waiting runs are handed back, and it is entered again."""
        if not lifespan.entered.done():
            return False
        if (error := lifespan.entered.exception()) is None:
            self._context.run(working.set, lifespan.entered.result())
            return True
        if self._handed:
            log.error("%s; handing %s back", error, plural(len(self._handed)))
            for run in self.take_unstarted():
                self._queue.release_slot(run)
                run.done(run, UNSTARTED)
            self._lifespan = self._open_lifespan()
        return False

    def _cancelled_by_another(self, run: Run, error: BaseException) -> RunOutcome | None:
        """The outcome if a handler cancelled all tasks of the loop: each runs alone next time, to find that handler."""
        if not isinstance(error, asyncio.CancelledError) or run.cancelled:
            return None
        if not self._hooks.are_reachable or not is_reachable(run.handler.function):
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
        """Ping the loop. Returns True if it has not answered for STALL_TIMEOUT: a handler blocks it.

        A lifespan may block it for longer while it is entered. On another loop it would only start over.
        """
        if self._abandoned:
            return False
        now = self._clock()
        is_entering = self._lifespan is not None and self._lifespan.is_entering()
        if is_entering or self._ticked_at >= self._pinged_at:
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

    def is_blocked_by(self, run: Run) -> bool:
        """Whether the handler of this run seems to block the loop: it runs, and the loop has not answered lately."""
        return self.blocker() is run and self._clock() - self._ticked_at > _USUAL_ANSWER_TIME

    def live(self) -> list[Run]:
        return list(self._started)

    def abandon_loop(self) -> None:
        """Stop waiting for the blocked loop. If it unblocks, its handlers are cancelled and its thread ends."""
        self._abandoned = True
        for run in self.live():
            self.abandon(run)

    def close(self) -> None:
        """Stop the loop, unless it is already stopped. A blocked thread ends when it unblocks, or with the process."""
        if not self._abandoned:
            self._abandoned = True
            self._loop.call_soon_threadsafe(_stop, self._loop)

    def is_alive(self) -> bool:
        """Whether the thread of the loop is still running."""
        return self._thread.is_alive()

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
        if self._lifespan is not None:  # handlers end first, then the lifespan, then what it left
            self._cancel_all({run.handle for run in self.live() if isinstance(run.handle, asyncio.Task)})
            self._loop.run_until_complete(self._lifespan.leave())
        self._cancel_all(asyncio.all_tasks(self._loop))
        for task in asyncio.all_tasks(self._loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it ignored its cancellation; that is reported already
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _cancel_all(self, left: set[asyncio.Task[Any]]) -> None:
        for task in left:
            task.cancel()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_TIMEOUT))


async def _call(run: Run) -> Any:
    """The handler, as the innermost call of the middleware, which sees invalid arguments too."""
    args, kwargs = run.handler.arguments.decode(run.task.payload)
    result = await run.handler.function(*args, **kwargs)
    run.handler_returned = True
    return result


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
