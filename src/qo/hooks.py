"""Code of a program around its handlers: middleware, callbacks for events, and the lifespan of a worker."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, TypeVar, get_args, overload

from msgspec import Struct

from qo.errors import InvalidSetting
from qo.interruptible_wait import wait_for_result
from qo.model import FailureKind, Task

T = TypeVar("T")
M = TypeVar("M", bound="Middleware")
TC = TypeVar("TC", bound="Callable[[TaskEvent], object]")
WC = TypeVar("WC", bound="Callable[[WorkerEvent], object]")
L = TypeVar("L", bound="LifespanFunction")

TaskEventName: TypeAlias = Literal["task_started", "task_succeeded", "task_retrying", "task_failed", "task_cancelled"]
WorkerEventName: TypeAlias = Literal["worker_started", "worker_stopping"]
EVENT_NAMES: tuple[str, ...] = (*get_args(TaskEventName), *get_args(WorkerEventName))


class TaskEvent(Struct, frozen=True, kw_only=True):
    """An event of a task. It is already stored, except for `task_started`."""

    name: TaskEventName
    task: Task  # as it was claimed: `attempt` is the number of this attempt
    worker_id: str
    error: str | None = None  # of `task_retrying` and `task_failed`: one line, then the traceback
    kind: FailureKind | None = None  # why the attempt ended without a result
    delay: float | None = None  # of `task_retrying`: seconds until the next attempt
    duration: float | None = None  # seconds the handler ran


class WorkerEvent(Struct, frozen=True, kw_only=True):
    """An event of a worker."""

    name: WorkerEventName
    worker_id: str


CallNext: TypeAlias = Callable[[], Awaitable[Any]]
Middleware: TypeAlias = Callable[[Task, CallNext], Coroutine[Any, Any, Any]]
LifespanFunction: TypeAlias = Callable[[], AbstractAsyncContextManager[Any] | AsyncIterator[Any]]


class Hooks:
    """The hooks of one program, in the order of their declaration."""

    def __init__(self) -> None:
        self.middleware: tuple[Middleware, ...] = ()
        self.lifespan: LifespanFunction | None = None
        self.are_reachable = True  # a child process can import them
        self.is_in_use = False  # a worker has started
        self._callbacks: dict[str, tuple[Callable[[Any], object], ...]] = {}

    def add_middleware(self, function: Middleware) -> None:
        if not inspect.iscoroutinefunction(function):
            raise InvalidSetting(f"{_name(function)} is not async: declare middleware as async def(task, call_next)")
        _check_arguments(function, ("task", "call_next"))
        self.middleware = (*self.middleware, function)
        self.are_reachable &= is_reachable(function)

    def add_callback(self, event: str, function: Callable[[Any], object]) -> None:
        if event not in EVENT_NAMES:
            raise InvalidSetting(f"there is no event {event!r:.80}; the events are: {', '.join(EVENT_NAMES)}")
        if inspect.iscoroutinefunction(function):
            raise InvalidSetting(f"{_name(function)} is async: a callback of {event} is a plain function")
        _check_arguments(function, ("event",))
        self._callbacks[event] = (*self._callbacks.get(event, ()), function)

    def set_lifespan(self, function: LifespanFunction) -> None:
        if self.lifespan is not None and self.lifespan is not function:
            raise InvalidSetting(f"the lifespan is already {_name(self.lifespan)}; an app has one")
        if self.is_in_use:
            raise InvalidSetting(f"{_name(function)}: declare the lifespan before the worker starts")
        _check_arguments(function, ())
        self.lifespan = function
        self.are_reachable &= is_reachable(function)

    def callbacks(self, event: str) -> tuple[Callable[[Any], object], ...]:
        return self._callbacks.get(event, ())

    @property
    def has_callbacks(self) -> bool:
        return bool(self._callbacks)

    def functions(self) -> Iterable[Callable[..., Any]]:
        """The functions that a child process needs too."""
        return (*self.middleware, *(() if self.lifespan is None else (self.lifespan,)))


class HookDecorators:
    """The decorators that `App` and `tq` have in common."""

    @property
    def hooks(self) -> Hooks:
        raise NotImplementedError

    def middleware(self, function: M) -> M:
        """Declare `async def middleware(task, call_next)` around every attempt. The first declared is the outermost.

        It returns what the attempt returns, usually `await call_next()`.
        """
        self.hooks.add_middleware(function)
        return function

    @overload
    def on(self, event: TaskEventName) -> Callable[[TC], TC]: ...
    @overload
    def on(self, event: WorkerEventName) -> Callable[[WC], WC]: ...
    def on(self, event: str) -> Any:
        """Declare a plain function that is called with a `TaskEvent` or `WorkerEvent`. It cannot change an outcome."""

        def declare(function: Callable[[Any], object]) -> Callable[[Any], object]:
            self.hooks.add_callback(event, function)
            return function

        return declare

    def lifespan(self, function: L) -> L:
        """Declare an async context manager that each worker process enters before its first task.

        `current_worker().state` is what it yields.
        """
        self.hooks.set_lifespan(function)
        return function


def is_reachable(function: Callable[..., Any]) -> bool:
    """Whether a child process can import the function: it must be found by its qualified name."""
    return "<" not in getattr(function, "__qualname__", "<")


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _check_arguments(function: Callable[..., Any], names: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        raise InvalidSetting(f"{_name(function)} must accept these arguments: ({', '.join(names)})") from None
    except ValueError:  # a function of a C extension without a signature
        return


def context_manager(function: LifespanFunction) -> AbstractAsyncContextManager[Any]:
    """The context manager of a lifespan: an async generator function, or a function that returns the manager."""
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)()
    made = function()
    if not hasattr(made, "__aenter__"):
        raise InvalidSetting(f"{_name(function)} must be an async generator or return an async context manager")
    return made  # type: ignore[return-value]  # checked above


async def call_through(middleware: tuple[Middleware, ...], task: Task, call: CallNext) -> Any:
    """Call the handler through the middleware, the first declared outermost."""
    for function in reversed(middleware):
        call = _NextCall(function, task, call)
    return await call()


class _NextCall:
    """The `call_next` of one middleware: calls the next one, once."""

    __slots__ = ("_call", "_called", "_function", "_task")

    def __init__(self, function: Middleware, task: Task, call: CallNext) -> None:
        self._function, self._task, self._call, self._called = function, task, call, False

    def __call__(self) -> Coroutine[Any, Any, Any]:
        return self._function(self._task, self._next)

    async def _next(self) -> Any:
        if self._called:
            raise InvalidSetting(f"{_name(self._function)} called call_next() twice: an attempt runs its handler once")
        self._called = True
        return await self._call()


# --- the worker, as handlers see it


class WorkerContext:
    """The worker that runs this handler, middleware or callback."""

    __slots__ = ("_loop", "id", "state")

    def __init__(self, id: str, state: Any = None, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.id = id
        self.state = state  # what the lifespan yielded in this process
        self._loop = loop  # of the lifespan

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the lifespan's event loop and wait for it. For plain functions; async code uses `arun`."""
        return wait_for_result(self._submit(work, wait=True))

    async def arun(self, work: Coroutine[Any, Any, T]) -> T:
        """As `run`, for async code: the middleware of a plain function runs on its own event loop."""
        if self._loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(self._submit(work, wait=False))

    def _submit(self, work: Coroutine[Any, Any, T], *, wait: bool) -> "Future[T]":
        problem = ""
        if self._loop is None:
            problem = "there is no event loop to run it on: declare @app.lifespan"
        elif wait and self._loop is _running_loop():
            problem = "this would block the event loop that has to run it: await it instead"
        if problem or self._loop is None:
            work.close()
            raise InvalidSetting(f"current_worker().run(): {problem}")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


working: ContextVar[WorkerContext] = ContextVar("qo_worker")


def current_worker() -> WorkerContext:
    """The worker that runs this code: its id, and the state of its lifespan."""
    try:
        return working.get()
    except LookupError:
        raise InvalidSetting("current_worker() can be called only in code that a worker runs") from None
