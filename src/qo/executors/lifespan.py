"""The lifespan of a worker: one task on an event loop enters the context manager, holds it open and leaves it."""

import asyncio
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from qo.clock import Clock, boot_clock
from qo.errors import QoError
from qo.hooks import LifespanFunction, WorkerContext, context_manager, working

log = logging.getLogger("qo.worker")
ENTER_TIMEOUT = 30.0  # seconds for a lifespan to yield
LEAVE_TIMEOUT = 3.0  # seconds for a lifespan to end; `qo worker` ends its process 4.5 s after the grace period


class LifespanFailed(QoError):
    """The lifespan of the app raised an error before it yielded, or did not yield in time."""


class OpenLifespan:
    """One instance of a lifespan. Its methods are called on its event loop, unless stated otherwise."""

    def __init__(self, function: LifespanFunction, worker_id: str, clock: Clock = boot_clock) -> None:
        self._function, self._worker_id = function, worker_id
        self._clock, self._opened_at = clock, clock()
        self.entered: Future[WorkerContext] = Future()  # may be awaited or read by any thread
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._hold())

    async def _hold(self) -> None:
        # Set first: `os._exit` then raises an exception instead of ending the process (exit_guard.py).
        working.set(WorkerContext(self._worker_id))
        limit = asyncio.timeout(ENTER_TIMEOUT)
        try:
            async with limit, context_manager(self._function) as state:
                limit.reschedule(None)
                context = WorkerContext(self._worker_id, state, asyncio.get_running_loop())
                working.set(context)
                self.entered.set_result(context)
                await self._over.wait()
        except BaseException as error:
            if limit.expired():
                with suppress(InvalidStateError):  # `Executors.open` reached the same limit first and cancelled it
                    self.entered.set_exception(_too_late(ENTER_TIMEOUT))
            elif self.entered.done():
                log.exception("the lifespan failed while it ended")
            else:
                log.exception("the lifespan failed")
                self.entered.set_exception(LifespanFailed(f"the lifespan raised {_shown(error)}"))

    async def leave(self) -> None:
        """End the lifespan, within LEAVE_TIMEOUT."""
        self._over.set()
        if self._task is None:
            return
        if not self.entered.done():
            self._task.cancel()
        await asyncio.wait([self._task], timeout=LEAVE_TIMEOUT)
        if not self._task.done():
            log.warning("the lifespan did not end within %g s", LEAVE_TIMEOUT)

    def is_entering(self) -> bool:
        """Whether it has neither yielded nor failed, and ENTER_TIMEOUT has not passed.

        May be called from any thread.
        """
        return not self.entered.done() and self._clock() - self._opened_at <= ENTER_TIMEOUT

    def wait(self, timeout: float) -> WorkerContext:
        """Wait until the lifespan has yielded. For other threads. Raises LifespanFailed."""
        try:
            return self.entered.result(timeout)
        except TimeoutError:
            raise _too_late(timeout) from None


def _too_late(timeout: float) -> LifespanFailed:
    return LifespanFailed(f"the lifespan did not yield within {timeout:g} s")


def _shown(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its __str__ raised; the name goes to the log
        return type(error).__name__


class LifespanThread:
    """A thread with an event loop for a lifespan and async handlers, in a child process of the process executor."""

    def __init__(self, function: LifespanFunction, worker_id: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._function, self._worker_id = function, worker_id
        self._started: Future[OpenLifespan] = Future()
        self._thread = threading.Thread(target=self._live, name="qo-lifespan", daemon=True)
        self._thread.start()

    def enter(self) -> WorkerContext:
        """Raises LifespanFailed."""
        return self._started.result().wait(ENTER_TIMEOUT)

    def leave(self) -> None:
        """End the lifespan and the event loop, within about LEAVE_TIMEOUT."""
        lifespan = self._started.result()
        leaving = asyncio.run_coroutine_threadsafe(lifespan.leave(), self.loop)
        leaving.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
        self._thread.join(LEAVE_TIMEOUT + 1.0)

    def _live(self) -> None:
        self.loop.call_soon(self._start)
        while True:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - sys.exit in a task must not end the loop
                log.warning("a task of a handler raised %s; the event loop continues", type(error).__name__)
            else:
                return

    def _start(self) -> None:
        lifespan = OpenLifespan(self._function, self._worker_id)
        lifespan.start()
        self._started.set_result(lifespan)
