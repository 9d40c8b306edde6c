"""Runs handlers in child processes, one at a time in each. A child can be killed, and a crash ends only the child.

Each child has a thread in the worker that talks to it. Requests and outcomes are msgpack; nothing is unpickled.
"""

import importlib
import inspect
import logging
import multiprocessing
import os
import signal
import sys
from asyncio import run as run_to_end
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from msgspec import Struct

from qo import destinations, tracing
from qo.clock import Clock, boot_clock
from qo.errors import InvalidSetting
from qo.model import LOST, FailureKind, Task, lost_its_process
from qo.tasks import STYLES, Arguments, Executor, Handler, running
from qo.worker.run import UNSTARTED, Run, RunOutcome, encode_result, is_reachable, outcome_of, timed_out
from qo.worker.start_queue import StartQueue
from qo.worker.thread_executor import ThreadExecutor

log = logging.getLogger("qo.worker")
_spawn = multiprocessing.get_context("spawn")
_CHILD = "qo-child"


class ChildRequest(Struct, frozen=True, kw_only=True):
    """A task for a child to run, and where the child finds the handler."""

    task: Task
    module: str
    name: str
    style: str  # of the handler's arguments
    result_limit: int


class _Child:
    def __init__(self) -> None:
        self.connection, theirs = _spawn.Pipe()
        self.process = _spawn.Process(
            target=child_main, args=(theirs, os.getpid(), destinations.redirect()), daemon=True, name=_CHILD
        )
        self.process.start()
        theirs.close()
        self.ran = 0

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessExecutor(ThreadExecutor):
    kind = Executor.PROCESS

    def __init__(
        self, queue: StartQueue, *, result_limit: Callable[[], int], tasks_per_process: int, clock: Clock = boot_clock
    ) -> None:
        super().__init__(queue, result_limit=result_limit, clock=clock)
        self._tasks_per_process = tasks_per_process
        self._children: dict[Run, _Child] = {}

    def _open_state(self) -> list[_Child]:
        return []  # holds the child once it is started

    def _close_state(self, state: object) -> None:
        for child in _children_of(state):
            child.end()

    def _call(self, run: Run, state: object) -> RunOutcome:
        kept = _children_of(state)
        if not kept:
            try:
                kept.append(_Child())
            except OSError as error:  # a limit of the system
                log.error(  # noqa: TRY400 - the reason is enough
                    "cannot start a process for a handler: %s; handing its task back", error
                )
                run.done(run, UNSTARTED)
                return RunOutcome()
        child = self._children[run] = kept[0]
        if not self._queue.begin(run):  # after the child was started, which does not count towards the time limit
            self._children.pop(run, None)
            return RunOutcome()
        try:
            outcome = _exchange(child, run, self._limit())
        finally:
            self._children.pop(run, None)
        if outcome is None or child.ran >= self._tasks_per_process:
            kept.clear()
            child.end()
        return outcome or _outcome_of_death(child, run)

    def cancel(self, run: Run) -> None:
        child = self._children.get(run)
        if child is not None:
            child.process.kill()  # `_exchange` then reads the end of the pipe


def _children_of(state: object) -> list[_Child]:
    return state if isinstance(state, list) else []


def _exchange(child: _Child, run: Run, limit: int) -> RunOutcome | None:
    """Have the child run the task. Returns None if the child died."""
    function, style = run.handler.function, run.handler.arguments.style
    request = ChildRequest(
        task=run.task, module=function.__module__, name=function.__qualname__, style=style, result_limit=limit
    )
    child.ran += 1
    try:
        child.connection.send_bytes(msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(child.connection.recv_bytes(), type=RunOutcome)
    except (EOFError, OSError):
        return None


def _outcome_of_death(child: _Child, run: Run) -> RunOutcome:
    if run.timed_out:
        # A suspect stays a suspect: in a thread it might hold the GIL, and a thread cannot be killed.
        late = timed_out(run.time_limit)
        return RunOutcome(error=f"{LOST}{late.error}", kind=FailureKind.LOST) if lost_its_process(run.task) else late
    code = child.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
    return RunOutcome(error=f"{LOST}the process running the handler {how}", kind=FailureKind.LOST)


def check_reachable(handler: Handler) -> None:
    if not is_reachable(handler):
        raise InvalidSetting(
            f"{handler.type!r} runs in a child process, so its function must be defined at the top level of a module"
        )


# --- in the child


def in_child() -> bool:
    """Whether this process is a child; also true while it imports the main module, before `child_main` is called."""
    return multiprocessing.current_process().name == _CHILD


def child_main(connection: Connection, parent: int, redirect: destinations.Redirect) -> None:
    """Run requests until the parent closes the pipe."""
    destinations.adopt(redirect)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent handles it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent(parent)
    pid = os.getpid()
    while True:
        try:
            request = msgspec.msgpack.decode(connection.recv_bytes(), type=ChildRequest)
        except (EOFError, OSError):
            return
        outcome = _execute(request)
        if os.getpid() != pid:
            os._exit(0)  # the handler forked and this is the fork
        connection.send_bytes(msgspec.msgpack.encode(outcome))


def _execute(request: ChildRequest) -> RunOutcome:
    running.set(request.task)
    try:
        function, arguments = _find(request.module, request.name, request.style)
        args, kwargs = arguments.decode(request.task.payload)
        with tracing.running(request.task):
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = run_to_end(result)
        return encode_result(result, request.result_limit)
    except BaseException as error:  # noqa: BLE001 - the parent gets the outcome, then the store
        return outcome_of(error)


@cache
def _find(module: str, name: str, style: str) -> tuple[Callable[..., Any], Arguments]:
    """The handler function with the module and name that the parent's registry has, and its arguments."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    handler = getattr(found, "handler", None)
    function = handler.function if isinstance(handler, Handler) else found
    return function, STYLES[style](function)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only needed here

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # the parent died before prctl was called
