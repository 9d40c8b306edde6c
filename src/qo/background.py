"""A client on an event loop in its own thread, for code without an event loop.

A single submission bypasses that event loop if the engine can write without one.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from qo.client import Client, TaskHandle
from qo.clock import monotonic_clock
from qo.errors import InvalidSetting, OutcomeUnknown, StorageError
from qo.interruptible_wait import wait_for_result
from qo.model import NewTask

_CANCEL_TIMEOUT = 1.0  # seconds for cancelled calls to end when their loop is stopped

T = TypeVar("T")


_loop_threads: "WeakSet[LoopThread]" = WeakSet()


def _replace_locks_after_fork() -> None:
    for thread in _loop_threads:
        thread.replace_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_replace_locks_after_fork)


class LoopThread:
    """An event loop in a daemon thread, started on first use. A forked child starts its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # a signal handler may submit while this thread holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[Future[Any]] = set()  # those that have not ended
        self._pid = 0
        _loop_threads.add(self)

    def replace_lock(self) -> None:
        """Call in a forked child: another thread may have held the lock at the fork."""
        self._lock = threading.RLock()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on this loop. The future raises OutcomeUnknown if the loop is stopped before it ends."""
        with self._lock:  # held until the loop has the coroutine, so that `stop` ends it
            try:
                loop = self._running()
            except RuntimeError as error:  # Python starts no thread
                coroutine.close()
                raise _not_started(error) from error
            call = asyncio.run_coroutine_threadsafe(self._until_stopped(coroutine), loop)
            calls = self._calls
        calls.add(call)
        call.add_done_callback(calls.discard)
        return call

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Raises InvalidSetting on the thread of the loop."""
        if self.is_current():
            coroutine.close()
            raise InvalidSetting(
                "a blocking call on the client's own event loop would wait forever; await the async method instead"
            )
        return wait_for_result(self.submit(coroutine))

    def is_current(self) -> bool:
        """Whether the caller runs on this event loop."""
        loop = self._loop
        # Unlike `get_running_loop`, this does not raise where no loop runs, which is the usual case.
        return loop is not None and asyncio._get_running_loop() is loop  # noqa: SLF001 - asyncio exports it

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop and await it on the caller's loop."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def stop(self) -> None:
        """Stop the loop. Calls that have not ended raise OutcomeUnknown."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None or self._pid != os.getpid():
                return
            loop.call_soon_threadsafe(loop.stop)
            thread = self._thread
        thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None or self._pid != os.getpid():
            loop, self._calls, self._pid = asyncio.new_event_loop(), set(), os.getpid()
            loop.time = monotonic_clock  # type: ignore[method-assign]  # a handler may replace time.monotonic
            self._thread = threading.Thread(target=_live, args=(loop, self._calls), name=self._name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                loop.close()
                raise
            self._loop = loop
        return self._loop

    async def _until_stopped(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            task.add_done_callback(_retrieve_error)
        try:
            return await coroutine
        except asyncio.CancelledError:
            if self._loop is loop:
                raise
            raise _stopped() from None


def _live(loop: asyncio.AbstractEventLoop, calls: set[Future[Any]]) -> None:
    """Run the loop until it is stopped, then end its calls."""
    try:
        loop.run_forever()
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=_CANCEL_TIMEOUT))
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it waits for the store
        loop.close()
        for call in list(calls):  # their cancellation waits for the store
            with suppress(InvalidStateError):  # the caller was interrupted
                call.set_exception(_stopped())


def _retrieve_error(call: "asyncio.Task[Any]") -> None:
    """The caller gets the error. A caller that was cancelled does not, and then asyncio would log it."""
    if not call.cancelled():
        call.exception()


def _stopped() -> OutcomeUnknown:
    return OutcomeUnknown("the client was closed during this call; if it was a write, it may have been applied")


def _is_exiting() -> bool:
    return not threading.main_thread().is_alive()


def _not_started(error: RuntimeError) -> StorageError:
    if not _is_exiting():
        return StorageError(f"a thread could not be started: {error}")
    return StorageError(
        "the program is exiting, and Python starts no more threads, so nothing was stored; "
        "make the first call before the main thread ends"
    )


class BackgroundClient:
    """A client that is opened on first use, and again after `close`. A forked child opens its own."""

    def __init__(self, connect: Callable[[], Client], name: str) -> None:
        self._connect, self._name = connect, name
        self._thread = LoopThread(name)
        self._opening: asyncio.Task[Client] | None = None
        # Process id, client, and what opened it: `close` may run while a caller waits for the client.
        self._opened: tuple[int, Client, asyncio.Task[Client]] | None = None
        self._pid = 0

    @property
    def is_used(self) -> bool:
        return self._opening is not None

    async def client(self) -> Client:
        """The open client. Call only on the event loop of this object."""
        if self._opening is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._opening = asyncio.create_task(self._connect().open())
        opening = self._opening
        try:
            client = await asyncio.shield(opening)
        except Exception:
            if self._opening is opening:
                self._opening = None  # the next call tries again
            raise
        self._opened = self._pid, client, opening
        return client

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop of this object and return its result."""
        return self._thread.run(coroutine)

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await self._thread.arun(coroutine)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the event loop of this object."""
        return self._thread.submit(coroutine)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the event loop of this object and wait for it."""

        async def call_function() -> None:
            function()

        self._thread.run(call_function())

    def call_client(self, function: Callable[[Client], Awaitable[T]]) -> T:
        """Call a method of the client: `call_client(lambda client: client.get(task_id))`."""
        return self.run(self._call_client(function))

    async def acall_client(self, function: Callable[[Client], Awaitable[T]]) -> T:
        return await self.arun(self._call_client(function))

    async def _call_client(self, function: Callable[[Client], Awaitable[T]]) -> T:
        client = None
        try:
            client = await self.client()
            return await function(client)
        except RuntimeError as error:
            if not _is_exiting():
                raise
            if client is None:  # opening a store needs threads
                raise _not_started(error) from error
            raise OutcomeUnknown(
                "the program is exiting, and Python starts no more threads; if this call was a write, it may have been "
                "applied"
            ) from error

    def submit(self, new: NewTask, *, connection: Any = None) -> TaskHandle:
        """Submit a task; returns when it is stored. Bypasses the event loop if client and engine allow it."""
        opened = self._opened  # read once: other threads may open or close the client
        is_open = opened is not None and opened[2] is self._opening and opened[0] == os.getpid()
        if opened is None or not is_open or connection is not None or self._thread.is_current():
            return self.call_client(lambda client: client.submit(new, connection=connection))
        client = opened[1]
        handle = client.submit_directly(new)
        if handle is None:
            return self.call_client(lambda client: client.submit(new))
        if not handle.new and new.idempotency_key is not None:
            return self.run(client.resolve_duplicate(new, handle))
        return handle

    async def asubmit(self, new: NewTask, *, connection: Any = None) -> TaskHandle:
        return await self.acall_client(lambda client: client.submit(new, connection=connection))

    def close(self, *, timeout: float | None = None) -> None:
        """Close the store. If that takes longer than `timeout` seconds, it continues in the background."""
        opening, self._opening, self._opened = self._opening, None, None
        if self._pid != os.getpid():
            return
        if opening is None:  # the last attempt to open it failed
            self._thread.stop()
            return
        closing = self._thread.submit(_close(opening))
        try:
            closing.result(timeout)
        except TimeoutError:
            if not closing.done():
                self._thread = LoopThread(self._name)  # the old loop is still closing the store
                return
            raise
        self._thread.stop()


async def _close(opening: asyncio.Task[Client]) -> None:
    try:
        client = await opening
    except Exception:  # noqa: BLE001 - already raised to the caller that opened it
        return
    await client.close()
