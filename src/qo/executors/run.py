"""One attempt at one task, and its outcome."""

import asyncio
import logging
import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from qo.codec import encode_value
from qo.errors import EncryptedValue, Fail, InvalidTask, Retry
from qo.executors.exit_guard import Exited
from qo.executors.handler_thread import AttemptLoop, ThreadException
from qo.executors.log_capture import LONG_LINE, add_line
from qo.model import (
    ERROR_LIMIT,
    Change,
    FailureKind,
    Task,
    after_error,
    check_size,
    complete,
    cut_middle,
    fail,
    is_a,
    release,
    set_apart,
)
from qo.model.task import LONGEST
from qo.running_task import ProgressReport
from qo.tasks import Handler

log = logging.getLogger("qo.worker")

_MAX_SUMMARY_LENGTH = 1000  # characters


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended. Built in the process that ran the handler, so that only bytes and text are transferred."""

    result: bytes | None = None
    error: str | None = None
    kind: FailureKind = FailureKind.ERROR  # of `error`
    permanent: bool = False  # do not retry
    after: float | None = None  # seconds until the retry
    group: str | None = None  # the group to release the task with, if it was submitted without one
    handed_back: bool = False  # did not run, or not to completion; does not count as a failure
    apart: bool = False  # another task may be the cause: not a failure, and the task runs alone next time


HANDED_BACK = RunOutcome(handed_back=True)
UNSTARTED = RunOutcome(handed_back=True, after=5.0)  # no thread or process could be started
_NO_KEY = RunOutcome(handed_back=True, after=60.0)  # encrypted with a key that this worker does not have


class TimedOut(BaseException):
    """Raised in a handler at its timeout. A BaseException, so that `except Exception` does not catch it."""


class Run:
    """A task this worker has claimed: waiting for a slot, running, or being settled. Times are by the boot clock."""

    __slots__ = (
        "abandoned",
        "began",
        "cancelled",
        "done",
        "dropped_lines",
        "ended",
        "ends_at",
        "executor",
        "handle",
        "handler",
        "handler_returned",
        "lease_until",
        "log_lines",
        "loop",
        "lost",
        "progress",
        "recalled",
        "received",
        "settled",
        "slot",
        "start_by",
        "start_reported",
        "task",
        "thread_exception",
        "timed_out",
    )  # fmt: skip

    def __init__(
        self,
        task: Task,
        handler: Handler,
        done: "Callable[[Run, RunOutcome], None]",
        *,
        received: float = 0.0,
        lease_until: float = float("inf"),
    ) -> None:
        self.task, self.handler, self.done = task, handler, done
        self.executor: Any = None  # the executor that will run it
        self.received = received  # when the claim was answered
        self.lease_until = lease_until  # counted from the moment the claim or renewal was sent: the earliest end
        self.began: float | None = None  # set right before the handler is called
        self.ended: float | None = None  # set when the handler has ended or was abandoned
        self.start_by = float("inf")  # a fleet limit does not allow a later start
        self.ends_at: float | None = None  # when the timeout is reached
        self.handle: object = None  # what the executor cancels: an asyncio task or a thread id
        self.loop: AttemptLoop | None = None  # on which the middleware of a plain function runs
        self.handler_returned = False  # set only if there is middleware
        self.timed_out = False
        self.cancelled = False  # the worker cancelled it
        self.thread_exception: ThreadException | None = None  # raised in its thread by a cancellation
        self.abandoned = False  # its executor no longer waits for the handler
        self.recalled = False  # a pause came before its handler began, so it must not start
        self.settled = False  # later reports of this run are ignored
        self.lost = False  # the lease is lost; the handler may still run
        self.progress: ProgressReport | None = None  # the last one; stored with the next renewal
        self.log_lines: list[
            str
        ] = []  # the last ones that the handler logged, if a worker of this process captures them
        self.dropped_lines = 0  # earlier ones
        self.start_reported = False  # the start of the handler is stored
        self.slot: int | None = None  # its entry in the run table

    @property
    def started_at(self) -> float | None:
        """When the handler began, by the store's clock: the claim's instant plus the local time passed since then."""
        return None if self.began is None else self.task.updated_at + max(0.0, self.began - self.received)

    @property
    def time_limit(self) -> float:
        """The timeout of this attempt: the handler's or else the task's, grown by the number of failures."""
        own, task = self.handler.time_limit, self.task
        return task.time_limit if own is None else min(LONGEST, own * task.retry.growth(task.failures))

    @property
    def ran(self) -> float | None:
        """Seconds the handler ran; None if it did not start or has not ended."""
        return None if self.began is None or self.ended is None else max(0.0, self.ended - self.began)

    def report_progress(self, report: ProgressReport) -> None:
        """May be called from any thread."""
        self.progress = report

    def add_log_line(self, line: str) -> None:
        """May be called from any thread."""
        lines = self.log_lines
        if lines or len(line) > LONG_LINE:
            self.dropped_lines += add_line(lines, line)
        else:
            lines.append(line)

    def outcome_after_middleware(self, result: object, limit: int) -> RunOutcome:
        """The outcome of what the middleware returned.

        Middleware may swallow the exception of a timeout. The attempt has timed out unless its handler has returned.
        """
        if self.timed_out and not self.handler_returned:
            return timed_out(self.time_limit)
        return encode_result(result, limit)

    def outcome_of(self, error: BaseException) -> RunOutcome:
        return outcome_of(self.task, error, timeout=self.time_limit if self.timed_out else None)


def encode_result(result: object, limit: int) -> RunOutcome:
    """The outcome of a handler's return value. A value that cannot be stored is a permanent failure."""
    try:
        data = encode_value(result, "result")
        check_size("result", data, limit)
    except InvalidTask as error:
        return RunOutcome(error=str(error), permanent=True)
    return RunOutcome(result=data)


def outcome_of(task: Task, error: BaseException, *, timeout: float | None = None) -> RunOutcome:
    """The outcome of an exception in the handler of a task.

    If `timeout` is given, the handler was cancelled after that many seconds. Never raises.
    """
    try:
        return _outcome_of(task, error, timeout)
    except TimedOut:  # raised in this thread while the error's text was built
        return RunOutcome(error=_without_text(error)) if timeout is None else timed_out(timeout)
    except BaseException:  # noqa: BLE001 - its __str__ raised
        return RunOutcome(error=_without_text(error))


def _without_text(error: BaseException) -> str:
    return f"{type(error).__name__} (its text could not be built)"


def _outcome_of(task: Task, error: BaseException, timeout: float | None) -> RunOutcome:
    if timeout is not None and isinstance(error, TimedOut | asyncio.CancelledError):
        return timed_out(timeout)
    if isinstance(error, EncryptedValue):
        log.error("handing task %s (%s) back: %s", task.id, task.type, error)
        return _NO_KEY
    return _failure_of(error)


def _failure_of(error: BaseException) -> RunOutcome:
    match error:
        case Retry():
            after = error.after if is_a(error.after, int, float) else None
            return RunOutcome(error=str(error), after=after)
        case Fail() | InvalidTask():
            return RunOutcome(error=str(error) or "the handler raised qo.Fail", permanent=True)
        case Exited():
            return RunOutcome(error=describe(error, f"the handler called os._exit({error.code!r})"))
        case SystemExit():
            return RunOutcome(error=describe(error, f"the handler called sys.exit({error.code!r})"))
    return RunOutcome(error=describe(error))


def timed_out(timeout: float, more: str = "") -> RunOutcome:
    return RunOutcome(error=f"timed out after {timeout:g} s{more}", kind=FailureKind.TIMEOUT)


def describe(error: BaseException, summary: str = "") -> str:
    """A summary line, then the traceback without locals, cut to ERROR_LIMIT bytes."""
    summary = summary or "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    return cut_middle(f"{summary[:_MAX_SUMMARY_LENGTH]}\n{trace}", ERROR_LIMIT)


def settlement(run: Run, outcome: RunOutcome, random: Callable[[], float], log: str | None = None) -> Change:
    """The change that the outcome makes to the task, by the rules of the model. `log`: its last lines."""
    task, started_at = run.task, run.started_at
    if outcome.handed_back:
        return release(task, outcome.after, log=log, group=outcome.group)
    if outcome.apart:
        return set_apart(task, outcome.error or "")
    if outcome.error is None:
        return complete(task, outcome.result or b"null", started_at=started_at, log=log)
    if outcome.permanent:
        return fail(task, outcome.error, kind=outcome.kind, started_at=started_at, log=log)
    return after_error(
        task, outcome.error, kind=outcome.kind, random=random(), after=outcome.after, started_at=started_at, log=log
    )
