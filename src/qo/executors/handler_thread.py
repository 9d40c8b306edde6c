"""A thread that runs plain functions: its event loop, and exceptions that other threads raise in it.

Middleware is async, so it needs an event loop around a plain function.
"""

import asyncio
import ctypes
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType
from typing import Any

_CLEANUP_TIMEOUT = 1.0  # seconds to wait for asyncio tasks that an attempt left on the loop
_SUSPENDABLE = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


class AttemptLoop:
    """Runs one coroutine at a time in its thread. The loop is created on first use.

    The handler is called inside the coroutine and blocks this loop, which affects only its own attempt.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Run the coroutine to completion. An exception raised in this thread by another thread ends it too."""
        loop = self._loop = self._loop or asyncio.new_event_loop()
        task = loop.create_task(work, context=context)
        try:
            result = loop.run_until_complete(task)
            if len(asyncio.all_tasks(loop)):
                self.close()
        except Exception:
            if len(asyncio.all_tasks(loop)):
                self.close()
            raise
        except BaseException:
            self.close()  # it may have been interrupted at any point
            raise
        return result

    def wake(self) -> None:
        """Wake the loop's thread, so that an exception set for the thread is raised. May be called from any thread."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(_nothing)
            except RuntimeError:  # closed in the meantime
                return

    def close(self) -> None:
        """Cancel what is left on the loop and close it."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        try:
            if left:
                loop.run_until_complete(asyncio.wait(left, timeout=_CLEANUP_TIMEOUT))
        finally:
            for task in asyncio.all_tasks(loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it ignored its cancellation
            loop.close()


def call_without_loop(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a plain function as in a thread without a running event loop, so that it can call asyncio.run."""
    loop = asyncio._get_running_loop()  # noqa: SLF001 - the public function raises if there is none
    task = None if loop is None else asyncio.current_task(loop)
    if loop is None or task is None:
        return function(*args, **kwargs)
    try:
        # Python has no public way to nest event loops. From 3.14 on, a thread has one current task, regardless of its
        # loop.
        asyncio._leave_task(loop, task)  # noqa: SLF001
        asyncio._set_running_loop(None)  # noqa: SLF001
        return function(*args, **kwargs)
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
        # Not None if another thread raised an exception here before `_leave_task`.
        if asyncio.current_task(loop) is None:
            asyncio._enter_task(loop, task)  # noqa: SLF001


def _nothing() -> None: ...


class ThreadException:
    """An exception for the code that a thread runs. It is raised when the thread next executes Python code.

    The interpreter raises it anywhere, also in code that catches every exception: an event loop logs what a callback
    raises, and continues. The handler then never sees it, so it must be raised again.
    """

    def __init__(self, thread: int, kind: type[BaseException]) -> None:
        self._raised: BaseException | None = None
        self._returned: FrameType | None = None  # the frame that caught it and had returned at the last check

        def remember(error: BaseException) -> None:
            self._raised = error

        # The interpreter takes a class and creates the instance, so a subclass has to record it.
        members = {"__init__": remember, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        self._thread, self._kind = thread, type(kind.__name__, (kind,), members)

    def set(self) -> None:
        self._raised = self._returned = None
        _set_exception(self._thread, self._kind)

    def clear(self) -> None:
        """Cancel the exception if it has not been raised yet."""
        self._raised = self._returned = None
        _set_exception(self._thread, None)

    def set_again_if_swallowed(self) -> bool:
        """Set the exception again if the function that caught it has returned. Call it repeatedly, with pauses.

        A function that still runs may be cleaning up, and so may a suspended coroutine: those are left alone.
        """
        catcher = self._returned_catcher()
        # An exception that is propagating may briefly look swallowed, so two checks must agree.
        is_swallowed = catcher is not None and catcher is self._returned
        self._returned = catcher
        if is_swallowed:
            self.set()
        return is_swallowed

    def _returned_catcher(self) -> FrameType | None:
        traceback = None if self._raised is None else self._raised.__traceback__
        if traceback is None:
            return None  # not raised or not caught yet
        catcher = traceback.tb_frame
        if catcher.f_code.co_flags & _SUSPENDABLE:
            return None
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way to see the stack of another thread
        while frame is not None:
            if frame is catcher:
                return None
            frame = frame.f_back
        return catcher


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    exception = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
