"""Handlers in child processes, one run at a time in each: they can be killed, and can kill only themselves.

Each child has a thread here that talks to it. Orders and reports are msgpack; nothing is unpickled.
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
from qo.model import LOST, Task, lost_its_process
from qo.tasks import STYLES, Arguments, Executor, Handler, running
from qo.worker.run import UNSTARTED, Run, RunOutcome, encode_result, is_reachable, outcome_of, timed_out
from qo.worker.start_queue import StartQueue
from qo.worker.thread_executor import ThreadExecutor

log = logging.getLogger("qo.worker")
_spawn = multiprocessing.get_context("spawn")
_CHILD = "qo-child"


class Order(Struct, frozen=True, kw_only=True):
    """What a child is told: the task, and where its own copy of the handler is."""

    task: Task
    module: str
    name: str
    style: str  # of its arguments
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

    def _enter(self) -> list[_Child]:
        return []  # the child, once there is one

    def _leave(self, keeper: object) -> None:
        for child in _kept(keeper):
            child.end()

    def _call(self, run: Run, keeper: object) -> RunOutcome:
        kept = _kept(keeper)
        if not kept:
            try:
                kept.append(_Child())
            except OSError as error:  # a limit of the system's
                log.error(  # noqa: TRY400 - the reason is enough
                    "no process can be started for a handler: %s; its task is handed back", error
                )
                run.done(run, UNSTARTED)
                return RunOutcome()
        child = self._children[run] = kept[0]
        if not self._queue.begin(run):  # after starting Python, which does not count
            self._children.pop(run, None)
            return RunOutcome()
        try:
            outcome = _converse(child, run, self._limit())
        finally:
            self._children.pop(run, None)
        if outcome is None or child.ran >= self._tasks_per_process:
            kept.clear()
            child.end()
        return outcome or _obituary(child, run)

    def cancel(self, run: Run) -> None:
        child = self._children.get(run)
        if child is not None:
            child.process.kill()  # `_converse` sees the pipe end


def _kept(keeper: object) -> list[_Child]:
    return keeper if isinstance(keeper, list) else []


def _converse(child: _Child, run: Run, limit: int) -> RunOutcome | None:
    """None if the child died instead of answering."""
    function, style = run.handler.function, run.handler.arguments.style
    order = Order(
        task=run.task, module=function.__module__, name=function.__qualname__, style=style, result_limit=limit
    )
    child.ran += 1
    try:
        child.connection.send_bytes(msgspec.msgpack.encode(order))
        return msgspec.msgpack.decode(child.connection.recv_bytes(), type=RunOutcome)
    except (EOFError, OSError):
        return None


def _obituary(child: _Child, run: Run) -> RunOutcome:
    if run.timed_out:
        # A suspect stays one: in a thread it might hold the interpreter, and nobody could end it there.
        return RunOutcome(error=f"{LOST if lost_its_process(run.task) else ''}{timed_out(run.time_limit)}")
    code = child.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
    return RunOutcome(error=f"{LOST}the process running the handler {how}")


def check_reachable(handler: Handler) -> None:
    if not is_reachable(handler):
        raise InvalidSetting(f"{handler.type!r} runs in a process, so its function must stand at the top of a module")


# --- in the child


def in_child() -> bool:
    """True also while the main module is imported again, before `child_main` is called."""
    return multiprocessing.current_process().name == _CHILD


def child_main(connection: Connection, parent: int, redirect: destinations.Redirect) -> None:
    """Take orders until the parent closes the pipe."""
    destinations.adopt(redirect)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C goes to the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _die_with_parent(parent)
    pid = os.getpid()
    while True:
        try:
            order = msgspec.msgpack.decode(connection.recv_bytes(), type=Order)
        except (EOFError, OSError):
            return
        outcome = _obey(order)
        if os.getpid() != pid:
            os._exit(0)  # a fork of the handler's came back
        connection.send_bytes(msgspec.msgpack.encode(outcome))


def _obey(order: Order) -> RunOutcome:
    running.set(order.task)
    try:
        function, arguments = _find(order.module, order.name, order.style)
        args, kwargs = arguments.decode(order.task.payload)
        with tracing.running(order.task):
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = run_to_end(result)
        return encode_result(result, order.result_limit)
    except BaseException as error:  # noqa: BLE001 - goes to the parent, then to the store
        return outcome_of(error)


@cache
def _find(module: str, name: str, style: str) -> tuple[Callable[..., Any], Arguments]:
    """The handler under the name the parent's own registry gave it."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    handler = getattr(found, "handler", None)
    function = handler.function if isinstance(handler, Handler) else found
    return function, STYLES[style](function)


def _die_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - only here

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)  # it died before we asked
