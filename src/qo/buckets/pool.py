"""Threads for calls that block: a bucket's own, so that nobody else's slow calls stand in its way."""

import asyncio
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Generic, ParamSpec, TypeVar

from qo.errors import StorageError

P = ParamSpec("P")
T = TypeVar("T")
_LINGER = 0.1  # seconds a thread waits for another call; the interpreter's exit waits as long


class Pool:
    """Threads start as they are needed, and end soon after.

    A thread that has made a call waits for the next one here instead of going back to the executor: the way there and
    back is half of what a quick call costs. Every call is promised to a waiting thread, to a new one or, if all are at
    work, to the next that is done. So always as many threads wait as there are promised calls and free threads
    together, whichever takes which.
    """

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="qo-bucket")
        self._process = os.getpid()
        self._calls: SimpleQueue[_Call[Any]] = SimpleQueue()
        self._lock = Lock()  # for these:
        self._most, self._threads = threads, 0
        self._free = 0  # threads that wait and are promised to no call
        self._unpromised = 0  # calls for the next threads that are done
        self._answers: _Answers | None = None

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if os.getpid() != self._process:  # a fork has none of our threads and shares our connections
            raise StorageError("this bucket was opened before the process forked; open another in the child")
        loop = asyncio.get_running_loop()
        if self._answers is None or self._answers.loop is not loop:
            self._answers = _Answers(loop)
        call = _Call(lambda: function(*args, **kwargs), self._answers)
        self._calls.put(call)
        if self._needs_a_thread():
            self._executor.submit(self._serve)
        return await call.future

    def _needs_a_thread(self) -> bool:
        """For one call more."""
        with self._lock:
            if self._free:
                self._free -= 1
            elif self._threads < self._most:
                self._threads += 1
                return True
            else:
                self._unpromised += 1
            return False

    def _serve(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_LINGER)
            except Empty:
                if self._may_leave():
                    return
                continue  # a call is on its way here, or was: another thread may have been quicker to take it
            call.make()
            self._come_back()

    def _may_leave(self) -> bool:
        with self._lock:
            if not self._free:
                return False
            self._free -= 1
            self._threads -= 1
            return True

    def _come_back(self) -> None:
        with self._lock:
            if self._unpromised:
                self._unpromised -= 1
            else:
                self._free += 1


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
