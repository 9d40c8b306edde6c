"""Runs handlers in child processes, one at a time in each. A child can be killed, and a crash ends only the child.

Each child has a thread in the worker that talks to it. Requests and outcomes are msgpack; nothing is unpickled.
"""

import contextlib
import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable

import msgspec

from qo import destinations
from qo.clock import Clock, boot_clock, monotonic_clock
from qo.errors import InvalidSetting
from qo.executors import lifespan
from qo.executors.child_process import (
    CANCEL_SIGNAL,
    CHILD,
    IMPORT,
    IMPORTED,
    LOG_LINE,
    PROGRESS,
    ChildRequest,
    ChildSetup,
    LifespanReport,
    child_main,
    name_of,
)
from qo.executors.run import UNSTARTED, Run, RunOutcome, timed_out
from qo.executors.start_queue import StartQueue
from qo.executors.thread_executor import ThreadExecutor
from qo.hooks import Hooks, WorkerContext, is_reachable
from qo.log_output import settings_of_process
from qo.model import LOST, FailureKind, lost_its_process
from qo.running_task import ProgressReport
from qo.tasks import Executor, Handler

log = logging.getLogger("qo.worker")
_progress = msgspec.msgpack.Decoder(ProgressReport)
_spawn = multiprocessing.get_context("spawn")
CANCEL_GRACE = 2.0  # seconds for the handler of a cancelled task to end before its process is killed
_IMPORT_TIMEOUT = 30.0  # seconds
_LIFESPAN_MARGIN = 5.0  # seconds for a child to import the program, and to exit once its lifespan has ended


class _Child:
    def __init__(self, hooks: Hooks, worker_id: str, *, captures_logs: bool) -> None:
        self.connection, theirs = _spawn.Pipe()
        setup = ChildSetup(
            parent=os.getpid(),
            worker_id=worker_id,
            redirect=destinations.redirect(),
            log=settings_of_process(),
            captures_logs=captures_logs,
            lifespan=None if hooks.lifespan is None else name_of(hooks.lifespan),
        )
        self.process = _spawn.Process(
            target=child_main, args=(theirs, msgspec.msgpack.encode(setup)), daemon=True, name=CHILD
        )
        self.process.start()
        theirs.close()
        self._has_hooks = bool(hooks.middleware) or hooks.lifespan is not None
        self.ran = 0
        self._imported: set[tuple[str, str]] = set()

    def import_handler(self, handler: Handler) -> None:
        """Wait until the child has imported a handler, so that it can start at its time. Imports may take seconds.

        A child that does not answer is left to the first request.
        """
        name = name_of(handler.function)
        if name in self._imported:
            return
        self._imported.add(name)
        until = monotonic_clock() + _IMPORT_TIMEOUT
        with contextlib.suppress(EOFError, OSError):
            self.connection.send_bytes(IMPORT + msgspec.msgpack.encode(name))
            while self.connection.poll(max(0.0, until - monotonic_clock())):
                if self.connection.recv_bytes() == IMPORTED:
                    return

    def lifespan_error(self) -> str:
        """Wait until the child has entered its lifespan; returns why it could not."""
        try:
            if not self.connection.poll(lifespan.ENTER_TIMEOUT + _LIFESPAN_MARGIN):
                return "the lifespan did not yield in time"
            return msgspec.msgpack.decode(self.connection.recv_bytes(), type=LifespanReport).error
        except (EOFError, OSError):
            return "the process ended while it entered the lifespan"

    def end(self) -> None:
        """End the process. Hooks get some time, because a lifespan has to end and middleware may have buffered data."""
        self.connection.close()
        if self._has_hooks:
            self.process.join(lifespan.LEAVE_TIMEOUT + 1.0)
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class ProcessExecutor(ThreadExecutor):
    kind = Executor.PROCESS

    def __init__(
        self,
        queue: StartQueue,
        *,
        result_limit: Callable[[], int],
        hooks: Hooks,
        worker: Callable[[], WorkerContext],
        captures_logs: bool,
        tasks_per_process: int,
        clock: Clock = boot_clock,
    ) -> None:
        super().__init__(queue, result_limit=result_limit, hooks=hooks, worker=worker, clock=clock)
        self._captures_logs, self._tasks_per_process = captures_logs, tasks_per_process
        self._children: dict[Run, _Child] = {}
        self._threads: set[threading.Thread] = set()

    def _open_state(self) -> list[_Child]:
        self._threads.add(threading.current_thread())
        return []  # holds the child once it is started

    def _close_state(self, state: object) -> None:
        for child in _children_of(state):
            child.end()
        self._threads.discard(threading.current_thread())

    def _call(self, run: Run, state: object) -> RunOutcome:
        kept = _children_of(state)
        if not kept and (problem := self._start_child(kept)):
            log.error("cannot start a process for a handler: %s; handing its task back", problem)
            run.done(run, UNSTARTED)
            return RunOutcome()
        child = self._children[run] = kept[0]
        if run.start_by < float("inf"):
            child.import_handler(run.handler)
        if not self._queue.begin(run):  # after the child was started, which does not count towards the timeout
            self._children.pop(run, None)
            return RunOutcome()
        try:
            outcome = self._exchange(child, run)
        except BaseException:  # the child may still run this task, so no other task may use it
            kept.clear()
            child.kill()
            raise
        finally:
            with self._guard:
                self._children.pop(run, None)
        if outcome is None:
            kept.clear()
            child.kill()
        elif child.ran >= self._tasks_per_process:
            kept.clear()
            self._end_later(child)
        return outcome or _outcome_of_death(child, run)

    def _end_later(self, child: _Child) -> None:
        """End a child without delaying the outcome of its last task, which would otherwise exceed its timeout."""
        try:
            threading.Thread(target=child.end, name="qo-child-end", daemon=True).start()
        except RuntimeError:  # "can't start new thread"
            child.kill()

    def _start_child(self, kept: list[_Child]) -> str:
        """Start a child; returns why it did not start."""
        try:
            child = _Child(self._hooks, self._worker().id, captures_logs=self._captures_logs)
        except Exception as error:  # noqa: BLE001 - a limit of the system, or a daemonic process, which may have no children
            return str(error) or type(error).__name__
        if self._hooks.lifespan is not None and (problem := child.lifespan_error()):
            child.kill()
            return problem
        kept.append(child)
        return ""

    def _exchange(self, child: _Child, run: Run) -> RunOutcome | None:
        """Let the child run the task. Returns None if the child died."""
        module, name = name_of(run.handler.function)
        request = ChildRequest(
            task=run.task,
            module=module,
            name=name,
            style=run.handler.arguments.style,
            result_limit=self._limit(),
            middleware=[name_of(function) for function in self._hooks.middleware],
        )
        child.ran += 1
        try:
            child.connection.send_bytes(msgspec.msgpack.encode(request))
            while (kind := (message := child.connection.recv_bytes())[:1]) in (LOG_LINE, PROGRESS, IMPORTED):
                if kind == PROGRESS:
                    run.report_progress(_progress.decode(message[1:]))
                elif kind == LOG_LINE:
                    run.add_log_line(message[1:].decode(errors="replace"))
            return msgspec.msgpack.decode(message, type=RunOutcome)
        except (EOFError, OSError, msgspec.DecodeError):
            return None

    def cancel(self, run: Run) -> None:
        """Kill the child; `_exchange` then reads the end of the pipe. The handler of a cancelled task may clean up."""
        with self._guard:
            child = self._children.get(run)
            if child is None:
                return
            if not run.lost or run.timed_out:
                child.process.kill()
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.process.pid or 0, CANCEL_SIGNAL)
        timer = threading.Timer(CANCEL_GRACE, self._kill, (run, child))
        timer.daemon = True
        timer.start()

    def _kill(self, run: Run, child: _Child) -> None:
        with self._guard:  # the child may have another run by now
            if self._children.get(run) is child:
                child.process.kill()

    def join(self, timeout: float) -> None:
        """Wait until the children have ended."""
        until = monotonic_clock() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, until - monotonic_clock()))


def _children_of(state: object) -> list[_Child]:
    return state if isinstance(state, list) else []


def _outcome_of_death(child: _Child, run: Run) -> RunOutcome:
    if run.timed_out:
        # A suspect stays a suspect: in a thread it might hold the GIL, and a thread cannot be killed.
        late = timed_out(run.time_limit)
        return RunOutcome(error=f"{LOST}{late.error}", kind=FailureKind.LOST) if lost_its_process(run.task) else late
    code = child.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
    return RunOutcome(error=f"{LOST}the process running the handler {how}", kind=FailureKind.LOST)


def check_reachable(handlers: Iterable[Handler], hooks: Hooks) -> None:
    """Raises InvalidSetting if a child process could not find one of these handlers, or a hook around them."""
    for handler in handlers:
        if handler.options.executor is Executor.PROCESS:
            _check_function(handler)
            _check_hooks(hooks)


def _check_function(handler: Handler) -> None:
    if not is_reachable(handler.function):
        raise InvalidSetting(
            f"{handler.type!r} runs in a child process, so its function must be defined at the top level of a module"
        )


def _check_hooks(hooks: Hooks) -> None:
    for function in hooks.functions():
        if not is_reachable(function):
            raise InvalidSetting(
                f"{function.__qualname__} is also called in child processes, because a task has executor='process', "
                "so it must be defined at the top level of a module"
            )
