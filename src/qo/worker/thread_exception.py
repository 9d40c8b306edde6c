"""Raises an exception in another thread, and notices if code in that thread swallowed it."""

import ctypes
import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import FrameType

_SUSPENDABLE = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR


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

        # The interpreter takes a class and creates the instance, so a subclass has to remember it.
        members = {"__init__": remember, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        self._thread, self._kind = thread, type(kind.__name__, (kind,), members)

    def set(self) -> None:
        self._raised = self._returned = None
        _set_exception(self._thread, self._kind)

    def clear(self) -> None:
        """Do not raise it if that has not happened yet."""
        self._raised = self._returned = None
        _set_exception(self._thread, None)

    def set_again_if_swallowed(self) -> bool:
        """Set the exception again if the function that caught it has returned. Call it repeatedly, with pauses.

        A function that still runs may be cleaning up, and so may a suspended coroutine: those are left alone.
        """
        catcher = self._returned_catcher()
        # An exception that is just propagating may look swallowed for a moment, so two checks must agree.
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
