"""Owns one connection. Calls that wait at the same time are served together.

Calls from an event loop are served by a separate thread. A call from plain code (`call`) is served in the calling
thread, because passing it to another thread and back costs about as much as a commit. The thread that holds the
connection serves all waiting calls, so concurrent callers share a commit.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Any

from qo.errors import OutcomeUnknown, StorageError

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
    """A call from plain code."""

    __slots__ = ("answer", "error", "is_cancelled", "is_done", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_done = self.is_cancelled = False
        self.answer: Any = None
        self.error: BaseException | None = None


class ConnectionThread:
    def __init__(self, name: str, serve: Callable[[Sequence[ConnectionCall | DirectCall]], None]) -> None:
        self._serve = serve
        self._waiting: deque[ConnectionCall | DirectCall] = deque()
        self._lock = Lock()  # held by the thread that uses the connection
        self._user = 0  # that thread, if it serves a direct call
        self._is_stopped = False
        self._wakeups: SimpleQueue[bool] = SimpleQueue()  # False: stop
        # A daemon thread, so that an engine without close() does not block the interpreter's exit.
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, work: Work, abandoned: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        call = ConnectionCall(work, abandoned)
        self._waiting.append(call)
        self._wakeups.put(True)
        return call.future

    def call(self, work: Work) -> Any:
        """Return the answer. The calling thread does the work unless another thread serves the call first."""
        if self._user == get_ident():
            raise StorageError("a signal handler or finalizer cannot write while it interrupts a write of its thread")
        call = DirectCall(work)
        self._waiting.append(call)
        try:
            with self._lock:
                self._serve_here(call)
        except BaseException:
            call.is_cancelled = True  # an asynchronous exception such as KeyboardInterrupt
            raise
        if call.error is not None:
            raise call.error
        return call.answer

    def _serve_here(self, call: DirectCall) -> None:
        """The caller must hold the lock."""
        if call.is_done:
            return
        if self._is_stopped:
            raise StorageError("the store is closed; open it again")
        self._user = get_ident()
        try:
            self._serve_waiting()
        finally:
            self._user = 0

    def stop(self) -> None:
        """End the thread once all calls so far are served."""
        self._wakeups.put(False)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        wakeups, is_open = self._wakeups, True
        while is_open:
            is_open = all([wakeups.get(), *(wakeups.get_nowait() for _ in range(wakeups.qsize()))])
            with self._lock:
                self._is_stopped = not is_open
                self._serve_waiting()

    def _serve_waiting(self) -> None:
        """The caller must hold the lock."""
        calls = [self._waiting.popleft() for _ in range(len(self._waiting))]
        live = [call for call in calls if not call.is_cancelled]
        try:
            self._serve(live)
        except BaseException:  # an asynchronous exception: other callers must not wait forever
            for call in live:
                call.error = OutcomeUnknown("the thread that served this call was interrupted; try again")
            raise
        finally:
            _answer(calls)


def _answer(calls: Sequence[ConnectionCall | DirectCall]) -> None:
    """Wake each event loop once instead of once per call, because a wake-up is expensive."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[ConnectionCall]](list)
    for call in calls:
        if isinstance(call, DirectCall):
            call.is_done = True
        else:
            by_loop[call.loop].append(call)
    for loop, some in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, some)
        except RuntimeError:  # the loop is closed, so nothing waits
            continue


def _resolve(calls: list[ConnectionCall]) -> None:
    for call in calls:
        call.resolve()
