"""Threads for calls that block: a bucket's own, so that nobody else's slow calls stand in its way."""

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
_LINGER = 0.1  # seconds a thread waits for another call; the interpreter's exit waits as long


class ThreadPool:
    """Threads start as they are needed, and end soon after.

    A thread that has made a call waits for the next one here instead of going back to the executor: the way there and
    back is half of what a quick call costs. It is handed its call, so that no other can take it; a queue shared by
    threads that wait for a while only would do, but that of CPython 3.11 can make one of them wait for ever.
    """

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="qo-bucket")
        self._process = os.getpid()
        self._lock = Lock()  # for these:
        self._most, self._threads = threads, 0
        self._free: list[_Seat] = []  # the last who came is the first to be called, so that others may leave
        self._waiting: deque[_Call[Any]] = deque()  # for a thread, while all are at work
        self._answers: _Answers | None = None

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._process:  # a fork has none of our threads and shares our connections
            raise StorageError("this bucket was opened before the process forked; open another in the child")
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        call = _Call(lambda: function(*args, **kwargs), self._answers)
        self._hand_out(call)
        return await call.future

    def _hand_out(self, call: "_Call[Any]") -> None:
        with self._lock:
            if self._free:
                seat = self._free.pop()
            elif self._threads < self._most:
                self._threads, seat = self._threads + 1, None
            else:
                self._waiting.append(call)
                return
        if seat is None:
            self._executor.submit(self._serve, call)
        else:
            seat.give(call)

    def _serve(self, call: "_Call[Any] | None") -> None:
        seat = _Seat()
        while call is not None:
            call.make()
            call = self._next(seat)

    def _next(self, seat: "_Seat") -> "_Call[Any] | None":
        """None: the thread is not needed any more."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._free.append(seat)
        if call := seat.wait(_LINGER):
            return call
        with self._lock:
            if seat in self._free:
                self._free.remove(seat)
                self._threads -= 1
                return None
        return seat.wait()  # a call is on its way


class _Seat:
    """Where a thread waits to be handed its next call."""

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
    def __init__(self, function: Callable[[], T], answers: "_Answers") -> None:
        self._function, self._answers = function, answers
        self.future: asyncio.Future[T] = answers.loop.create_future()

    def make(self) -> None:
        if self.future.cancelled():
            return
        try:
            answer = self._function()
        except BaseException as error:  # noqa: BLE001 - goes to the caller
            self._answers.give(self.future, None, error)
        else:
            self._answers.give(self.future, answer, None)


class _Answers:
    """On their way back to the loop, which is woken once for all that are there when it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._given: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False

    def give(self, future: "asyncio.Future[Any]", answer: object, error: BaseException | None) -> None:
        self._given.append((future, answer, error))
        if not self._told:
            self._told = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._told = False
        while self._given:
            future, answer, error = self._given.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(answer)
            else:
                future.set_exception(error)
