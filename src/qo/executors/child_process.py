"""The child processes of the process executor: the messages they receive, and how they run a handler."""

import asyncio
import contextlib
import importlib
import inspect
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import cache
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

import msgspec
from msgspec import Struct

from qo import destinations, log_output, tracing
from qo.arguments import STYLES, Arguments
from qo.clock import Clock, boot_clock
from qo.codec import plain_task
from qo.errors import Cancelled, QoError
from qo.executors.handler_thread import AttemptLoop, call_without_loop
from qo.executors.lifespan import LifespanThread
from qo.executors.log_capture import CAPTURE
from qo.executors.run import RunOutcome, encode_result, outcome_of
from qo.hooks import WorkerContext, call_through, working
from qo.log_output import LogSettings
from qo.model import Task
from qo.model.text import LOG_LIMIT
from qo.running_task import ProgressReport, running, running_attempt
from qo.tasks import Handler

CHILD = "qo-child"
CANCEL_SIGNAL = signal.SIGUSR2
# A message that begins with one of these is a log line, a progress report, or says that a handler was imported; no
# encoded outcome does.
LOG_LINE, PROGRESS, IMPORTED = b"L", b"P", b"I"
IMPORT = b"I"  # a message to the child that begins with this is no request: the child imports a handler
_PROGRESS_INTERVAL = 0.25  # seconds between two reports that are sent to the worker


class ChildSetup(Struct, frozen=True, kw_only=True):
    """The settings that a child receives when it starts."""

    parent: int  # process id
    worker_id: str
    redirect: destinations.Redirect
    lifespan: tuple[str, str] | None = None  # module and qualified name
    log: LogSettings | None = None  # None: the program configures its log itself
    captures_logs: bool = False  # send the lines of handlers to the worker


class LifespanReport(Struct, frozen=True, kw_only=True):
    """The first message of a child with a lifespan."""

    error: str = ""  # why it could not be entered


class ChildRequest(Struct, frozen=True, kw_only=True):
    """A task for a child to run, and where the child finds the handler and the middleware."""

    task: Task
    module: str
    name: str
    style: str  # of the handler's arguments
    result_limit: int
    middleware: list[tuple[str, str]] = []


def name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Where a child finds the function: its module and its qualified name."""
    return function.__module__, function.__qualname__


def in_child() -> bool:
    """Whether this process is a child; also true while it imports the main module, before `child_main` is called."""
    return multiprocessing.current_process().name == CHILD


def child_main(connection: Connection, setup_data: bytes) -> None:
    """Run requests until the parent closes the pipe."""
    setup = msgspec.msgpack.decode(setup_data, type=ChildSetup)
    destinations.adopt(setup.redirect)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent(setup.parent)
    if setup.log is not None:
        log_output.apply(setup.log, root=True)
    sending = threading.Lock()
    pid = os.getpid()
    handlers = ChildHandlers(setup.worker_id, lambda: AttemptReports(connection, sending))
    signal.signal(CANCEL_SIGNAL, handlers.cancel)
    if setup.lifespan is not None:
        error = handlers.enter(*setup.lifespan)
        connection.send_bytes(msgspec.msgpack.encode(LifespanReport(error=error)))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            break
        if message.startswith(IMPORT):
            with contextlib.suppress(BaseException):  # the request reports it
                find(*msgspec.msgpack.decode(message[1:], type=tuple[str, str]))
            with sending:
                connection.send_bytes(IMPORTED)
            continue
        request = msgspec.msgpack.decode(message, type=ChildRequest)
        if setup.captures_logs and CAPTURE not in logging.getLogger().handlers:  # the program may configure its log
            CAPTURE.install()
        reports, outcome = handlers.execute(request)
        if os.getpid() != pid:
            os._exit(0)  # the handler forked and this is the fork
        with sending:
            reports.end()
            connection.send_bytes(msgspec.msgpack.encode(outcome))
    handlers.leave()


class AttemptReports:
    """Sends the log lines and the progress of one attempt to the worker, until the attempt ends.

    Messages do not name their attempt: the worker takes them for those of the task that the child runs. A thread that
    the handler left behind may still report, and its reports must not reach the next task.
    """

    def __init__(self, connection: Connection, sending: threading.Lock, clock: Clock = boot_clock) -> None:
        self._connection, self._sending, self._clock = connection, sending, clock
        self._sent_at, self._pid, self._has_ended = float("-inf"), os.getpid(), False

    def end(self) -> None:
        """Drop later reports. Called with the lock `sending`."""
        self._has_ended = True

    def report_progress(self, report: ProgressReport) -> None:
        """Send a report, at most a few a second."""
        now = self._clock()
        if os.getpid() == self._pid and (report[0] == 1 or now - self._sent_at >= _PROGRESS_INTERVAL):
            self._sent_at = now
            self._send(PROGRESS + msgspec.msgpack.encode(report))

    def add_log_line(self, line: str) -> None:
        """Send a line immediately, because the process may be killed before its attempt ends."""
        if os.getpid() == self._pid:
            self._send(LOG_LINE + line.encode(errors="replace")[-LOG_LIMIT:])

    def _send(self, message: bytes) -> None:
        with self._sending:
            if not self._has_ended:
                self._connection.send_bytes(message)


class ChildHandlers:
    """Runs the handlers of one child: plain ones in its main thread, async ones on the lifespan's event loop."""

    def __init__(self, worker_id: str, open_reports: Callable[[], AttemptReports]) -> None:
        self._context, self._open_reports = WorkerContext(worker_id), open_reports
        self._lifespan: LifespanThread | None = None
        self._attempt_loop = AttemptLoop()
        self._is_running = False

    def cancel(self, _signal: int, _frame: FrameType | None) -> None:
        """Raise Cancelled in the running handler, if there is one."""
        if self._is_running:
            self._is_running = False
            raise Cancelled

    def enter(self, module: str, name: str) -> str:
        """Enter the lifespan; returns why it failed."""
        try:
            self._lifespan = LifespanThread(find(module, name), self._context.id)
            self._context = self._lifespan.enter()
        except QoError as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the parent logs it
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
        return ""

    def leave(self) -> None:
        if self._lifespan is not None:
            self._lifespan.leave()

    def execute(self, request: ChildRequest) -> tuple[AttemptReports, RunOutcome]:
        reports = self._open_reports()
        return reports, self._execute(request, reports)

    def _execute(self, request: ChildRequest, reports: AttemptReports) -> RunOutcome:
        context = copy_context()
        context.run(running.set, request.task)
        context.run(running_attempt.set, reports)
        context.run(working.set, self._context)
        try:
            try:
                self._is_running = True
                return encode_result(context.run(self._call, request), request.result_limit)
            finally:
                self._is_running = False
        except BaseException as error:  # noqa: BLE001 - the parent gets the outcome, then the store
            return outcome_of(request.task, error)

    def _call(self, request: ChildRequest) -> Any:
        function, arguments = _find_handler(request.module, request.name, request.style)
        with tracing.running(request.task):
            if not request.middleware:
                args, kwargs = arguments.decode(request.task.payload)
                result = function(*args, **kwargs)
                return self._await(result) if inspect.iscoroutine(result) else result
            work = _call_through(request, function, arguments)
            if inspect.iscoroutinefunction(function):
                return self._await(work)
            return self._attempt_loop.run(work, copy_context())

    def _await(self, work: Any) -> Any:
        """Run a coroutine on the lifespan's event loop, or on a new one."""
        if self._lifespan is None:
            return asyncio.run(work)
        return self._context.run(work)


async def _call_through(request: ChildRequest, function: Callable[..., Any], arguments: Arguments) -> Any:
    async def call() -> Any:
        args, kwargs = arguments.decode(request.task.payload)
        result = call_without_loop(function, args, kwargs)
        return await result if inspect.isawaitable(result) else result

    middleware = tuple(find(module, name) for module, name in request.middleware)
    return await call_through(middleware, plain_task(request.task), call)


@cache
def find(module: str, name: str) -> Any:
    """The object with this module and qualified name."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@cache
def _find_handler(module: str, name: str, style: str) -> tuple[Callable[..., Any], Arguments]:
    """The handler function with the module and name that the parent's registry has, and its arguments."""
    found = find(module, name)
    handler = getattr(found, "handler", None)
    function = handler.function if isinstance(handler, Handler) else found
    return function, STYLES[style](function)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only needed here

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # the parent died before prctl was called
