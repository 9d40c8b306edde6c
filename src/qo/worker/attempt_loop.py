"""The event loop of a thread that runs plain functions. Middleware is async, so it needs one around them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any

_CLEANUP_TIMEOUT = 1.0  # seconds for asyncio tasks that an attempt left on the loop to end


class AttemptLoop:
    """Runs one coroutine at a time in its thread. The loop is created on first use.

    The handler is called inside the coroutine and blocks this loop. That concerns only its own attempt.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Any], context: Context) -> Any:
        """Run the coroutine to its end. An exception raised in this thread from outside ends it too."""
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
            self.close()  # it may have been interrupted anywhere
            raise
        return result

    def wake(self) -> None:
        """Make the loop's thread leave its wait, so that an exception set for the thread is raised. From any thread."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(_nothing)
            except RuntimeError:  # closed meanwhile
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
        # Python has no public way to nest event loops. From 3.14 on, a thread has one current task, whatever its loop.
        asyncio._leave_task(loop, task)  # noqa: SLF001
        asyncio._set_running_loop(None)  # noqa: SLF001
        return function(*args, **kwargs)
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001
        if asyncio.current_task(loop) is None:  # not if an exception from outside came before `_leave_task`
            asyncio._enter_task(loop, task)  # noqa: SLF001


def _nothing() -> None: ...
