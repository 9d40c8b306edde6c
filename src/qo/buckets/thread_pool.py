"""A thread pool for blocking calls, one per bucket, so that other users of threads cannot delay it."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

from qo.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")
_IDLE_TIMEOUT = 0.1  # of a thread; the interpreter's exit waits as long


class ThreadPool:
    """Starts threads on demand and ends them soon after.

    A thread that has finished a call waits here for the next one instead of returning to the executor, which would
    double the cost of a quick call. A call is handed to one waiting thread. A shared queue with a timed get would be
    simpler, but in CPython 3.11 such a get can block forever.
    """

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="qo-bucket")
        self._process = os.getpid()
        self._lock = Lock()  # guards the attributes below
        self._max_threads, self._threads = threads, 0
        self._idle: list[_IdleThread] = []  # last in, first out, so that surplus threads time out
        self._waiting: deque[_Call[Any]] = deque()  # calls that wait for a thread
        self._results: _Results | None = None

    @property
    def threads(self) -> int:
        """The number of threads that run a call or wait for one."""
        return self._threads

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._process:  # a child process has no threads and shares the parent's connections
            raise StorageError("this bucket was opened before the process forked; open another one in the child")
        loop = asyncio.get_running_loop()
        if self._results is None or self._results.loop is not loop:
            self._results = _Results(loop)
        call = _Call(lambda: function(*args, **kwargs), self._results)
        self._dispatch(call)
        return await call.future

    def _dispatch(self, call: "_Call[Any]") -> None:
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
            elif self._threads < self._max_threads:
                self._threads, thread = self._threads + 1, None
            else:
                self._waiting.append(call)
                return
        if thread is not None:
            thread.give(call)
            return
        try:
            self._executor.submit(self._serve, call)
        except RuntimeError:  # the interpreter is exiting and starts no threads, so blocking the loop is harmless
            with self._lock:
                self._threads -= 1
            call.make()

    def _serve(self, call: "_Call[Any] | None") -> None:
        thread = _IdleThread()
        while call is not None:
            call.make()
            call = self._next(thread)

    def _next(self, thread: "_IdleThread") -> "_Call[Any] | None":
        """The next call, or None if the thread has been idle for too long and must end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(thread)
        if call := thread.wait(_IDLE_TIMEOUT):
            return call
        with self._lock:
            if thread in self._idle:
                self._idle.remove(thread)
                self._threads -= 1
                return None
        return thread.wait()  # `_dispatch` took this thread and is about to give it a call


class _IdleThread:
    """A thread that waits for its next call."""

    def __init__(self) -> None:
        self._given = Lock()
        self._given.acquire()
        self._call: _Call[Any] | None = None

    def give(self, call: "_Call[Any]") -> None:
        self._call = call
        self._given.release()

    def wait(self, timeout: float = -1) -> "_Call[Any] | None":
        if not self._given.acquire(timeout=timeout):
            return None
        call, self._call = self._call, None
        return call


class _Call(Generic[T]):
    def __init__(self, function: Callable[[], T], results: "_Results") -> None:
        self._function, self._results = function, results
        self.future: asyncio.Future[T] = results.loop.create_future()

    def make(self) -> None:
        if self.future.cancelled():
            return
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            self._results.give(self.future, None, error)
        else:
            self._results.give(self.future, result, None)


class _Results:
    """Passes results to the event loop, with one wake-up for all results that are ready."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._given: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_wake_scheduled = False

    def give(self, future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
        self._given.append((future, result, error))
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._is_wake_scheduled = False
        while self._given:
            future, result, error = self._given.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
