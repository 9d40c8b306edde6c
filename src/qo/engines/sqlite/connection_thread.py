"""One thread owns one connection. Calls that wait at the same time are served together.

Only this thread uses the connection. Code in other threads can be interrupted at any line, by a signal handler, a time
limit or Ctrl-C, and must not hold a lock or a transaction then. `direct_connection.py` describes how it can write
anyway.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Any

from qo.errors import OutcomeUnknown, StorageError

_LIVENESS_INTERVAL = 1.0  # seconds between two checks that the thread of a waiting call still runs
Work = Callable[[Any], Any]  # takes a SqliteTable or a SqliteReader


class ConnectionCall:
    """A call from an event loop."""

    __slots__ = ("abandoned", "answer", "error", "future", "loop", "work")

    def __init__(self, work: Work, abandoned: Callable[[Any], None] | None = None) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.abandoned = abandoned  # called with the answer if the caller was cancelled after the work was done
        self.answer: Any = None
        self.error: BaseException | None = None

    @property
    def is_cancelled(self) -> bool:
        return self.future.cancelled()

    def resolve(self) -> None:
        if self.future.cancelled():
            if self.abandoned is not None and self.error is None and self.answer is not None:
                self.abandoned(self.answer)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class DirectCall:
    """A call from plain code, which blocks until it is served."""

    __slots__ = ("_served", "answer", "error", "is_cancelled", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_cancelled = False
        self.answer: Any = None
        self.error: BaseException | None = None
        self._served = Lock()
        self._served.acquire()

    def resolve(self) -> None:
        self._served.release()

    def wait(self, timeout: float) -> bool:
        """Whether the call is served within `timeout` seconds."""
        return self._served.acquire(timeout=timeout)


class ConnectionThread:
    def __init__(self, name: str, serve: Callable[[Sequence[ConnectionCall | DirectCall]], None]) -> None:
        self._serve = serve
        self._waiting: deque[ConnectionCall | DirectCall] = deque()
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # False: stop
        self._ident = 0
        self._is_serving = True
        self.lock = Lock()  # held while calls are served
        self._last_batch_size = 0
        # A daemon thread, so that an engine without close() does not block the interpreter's exit.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether a call would be served immediately and alone. Another thread may change that at any time.

        If several calls were served together the last time, the next ones are expected to come together too.
        """
        return not self._waiting and self._last_batch_size < 2 and not self.lock.locked()  # noqa: PLR2004 - alone

    def submit(self, work: Work, abandoned: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Queue work from an event loop. The future gets its answer."""
        call = ConnectionCall(work, abandoned)
        self._put(call)
        return call.future

    def call(self, work: Work) -> Any:
        """Return the answer; blocks the calling thread. An interrupt ends only the wait."""
        if get_ident() == self._ident:
            raise StorageError("a finalizer that interrupts a write cannot write itself")
        call = DirectCall(work)
        if self._is_serving:
            self._put(call)
        try:
            self._wait(call)
        except BaseException:
            call.is_cancelled = True
            raise
        if call.error is not None:
            raise call.error
        return call.answer

    def _wait(self, call: DirectCall) -> None:
        while not call.wait(_LIVENESS_INTERVAL if self._is_serving else 0.0):
            if not self._thread.is_alive() and not call.wait(0.0):
                raise StorageError("the store is closed; open it again")

    def _put(self, call: ConnectionCall | DirectCall) -> None:
        self._waiting.append(call)
        self._wakeups.put(True)

    @property
    def waiting(self) -> int:
        """The number of calls that the thread has not begun to serve."""
        return len(self._waiting)

    def stop(self) -> None:
        """End the thread once all calls so far are served."""
        self._wakeups.put(False)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        self._ident = get_ident()
        wakeups, is_open = self._wakeups, True
        while is_open:
            is_open = wakeups.get()
            while not wakeups.empty():
                is_open = wakeups.get() and is_open
            self._serve_waiting()
        self._is_serving = False

    def _serve_waiting(self) -> None:
        with self.lock:
            calls = [self._waiting.popleft() for _ in range(len(self._waiting))]
            live = [call for call in calls if not call.is_cancelled]
            self._last_batch_size = len(live)
            try:
                self._serve(live)
            except BaseException as error:  # noqa: BLE001 - every caller gets it, and the thread serves the next calls
                for call in live:
                    call.error = OutcomeUnknown(f"the write was interrupted by {type(error).__name__}; try again")
        _answer(calls)


def _answer(calls: Sequence[ConnectionCall | DirectCall]) -> None:
    """Wake each event loop once instead of once per call, because a wake-up is expensive."""
    by_loop: dict[asyncio.AbstractEventLoop, list[ConnectionCall]] = {}
    for call in calls:
        if isinstance(call, DirectCall):
            call.resolve()
        else:
            by_loop.setdefault(call.loop, []).append(call)
    for loop, resolved in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, resolved)
        except RuntimeError:  # the loop is closed, so nothing waits
            continue


def _resolve(calls: list[ConnectionCall]) -> None:
    for call in calls:
        call.resolve()
