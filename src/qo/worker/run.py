"""One attempt at one task, and what came of it."""

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from qo.codec import encode_value
from qo.errors import Fail, InvalidTask, Retry
from qo.model import ERROR_LIMIT, Change, Task, after_error, check_size, complete, fail, is_a, release, set_apart
from qo.model.task import LONGEST
from qo.tasks import Handler
from qo.worker.exit_guard import Exited

_SUMMARY = 1000


class RunOutcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended. Made where the handler ran, so that nothing but bytes and text travels."""

    result: bytes | None = None
    error: str | None = None
    permanent: bool = False  # do not try again
    after: float | None = None  # try again after so many seconds
    handed_back: bool = False  # not run, or not to its end, through no fault of its own
    apart: bool = False  # perhaps another's fault: costs nothing, and the task runs alone next time


HANDED_BACK = RunOutcome(handed_back=True)
UNSTARTED = RunOutcome(handed_back=True, after=5.0)  # no thread or process could be started: a little later, perhaps


class TimedOut(BaseException):
    """Thrown into a handler whose time is up; no `except Exception` of its own should catch it."""


class Run:
    """A task this worker holds: waiting here, running, or waiting to be settled. Its times are by the boot clock."""

    __slots__ = (
        "began", "cancelled", "disowned", "done", "ended", "ends_at", "executor", "handle", "handler",
        "lease_until", "lost", "recalled", "received", "settled", "slot", "struck", "task", "timed_out", "told",
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
        self.executor: Any = None  # which one is to run it
        self.received = received  # when the claim was answered
        self.lease_until = lease_until  # the lease cannot end before: counted from when the claim or renewal was sent
        self.began: float | None = None  # set right before the handler is called
        self.ended: float | None = None  # set when the handler has ended, or its executor gave up on it
        self.ends_at: float | None = None  # when its time is up
        self.handle: object = None  # the executor's own: what to cancel
        self.timed_out = False
        self.cancelled = False  # the worker cancelled it
        self.struck = False  # its thread may be about to hear an exception that must not outlive it
        self.disowned = False  # its executor gave up on it
        self.recalled = False  # a pause came before its handler began: it is not to start
        self.settled = False  # no later report of this run counts
        self.lost = False  # the lease went to someone else; its handler may still run
        self.told = False  # the store knows that the handler has begun
        self.slot: int | None = None  # its entry in the table that the supervisor reads

    @property
    def started_at(self) -> float | None:
        """When the handler began, by the store's clock: what passed here since the claim is added to its instant."""
        return None if self.began is None else self.task.updated_at + max(0.0, self.began - self.received)

    @property
    def time_limit(self) -> float:
        """Seconds this attempt may take: as the handler says, else as the task says, grown by what failed before."""
        own, task = self.handler.options.time_limit, self.task
        return task.time_limit if own is None else min(LONGEST, own * task.retry.growth(task.failures))

    @property
    def ran(self) -> float | None:
        """Seconds the handler ran; None if it did not start."""
        return None if self.began is None or self.ended is None else max(0.0, self.ended - self.began)

    def outcome_of(self, error: BaseException) -> RunOutcome:
        return outcome_of(error, timeout=self.time_limit if self.timed_out else None)


def is_reachable(handler: Handler) -> bool:
    """A child process imports the handler anew, so it must have a name to be found by."""
    return "<" not in getattr(handler.function, "__qualname__", "<")


def encode_result(result: object, limit: int) -> RunOutcome:
    """A handler's return value. One that cannot be kept is the handler's fault, and trying again would not help."""
    try:
        data = encode_value(result, "result")
        check_size("result", data, limit)
    except InvalidTask as error:
        return RunOutcome(error=str(error), permanent=True)
    return RunOutcome(result=data)


def outcome_of(error: BaseException, *, timeout: float | None = None) -> RunOutcome:
    """`timeout` is given if the time was up, which is then what the error means. Never raises."""
    try:
        return _outcome_of(error, timeout)
    except TimedOut:  # while the error's own text was asked for
        return RunOutcome(error=timed_out(timeout) if timeout is not None else _speechless(error))
    except BaseException:  # noqa: BLE001 - what its __str__ raised is not of interest
        return RunOutcome(error=_speechless(error))


def _speechless(error: BaseException) -> str:
    return f"{type(error).__name__} (its text could not be made)"


def _outcome_of(error: BaseException, timeout: float | None) -> RunOutcome:
    if timeout is not None and isinstance(error, TimedOut | asyncio.CancelledError):
        return RunOutcome(error=timed_out(timeout))
    match error:
        case Retry():
            after = error.after if is_a(error.after, int, float) else None
            return RunOutcome(error=str(error), after=after)
        case Fail() | InvalidTask():
            return RunOutcome(error=str(error) or "the handler gave up", permanent=True)
        case Exited():
            return RunOutcome(error=describe(error, f"the handler called os._exit({error.code!r})"))
        case SystemExit():
            return RunOutcome(error=describe(error, f"the handler called sys.exit({error.code!r})"))
    return RunOutcome(error=describe(error))


def timed_out(timeout: float) -> str:
    return f"timed out after {timeout:g} s"


def describe(error: BaseException, summary: str = "") -> str:
    """One line for tables, then the traceback without locals, cut to what a store should keep."""
    summary = summary or "".join(traceback.format_exception_only(error)).strip()
    trace = "".join(traceback.format_exception(error))
    text = f"{summary[:_SUMMARY]}\n{trace}"
    kept = text.encode("utf-8", "replace")
    if len(kept) > ERROR_LIMIT:
        half = ERROR_LIMIT // 2 - 20
        kept = kept[:half] + b"\n... (cut) ...\n" + kept[-half:]
    return kept.decode("utf-8", "ignore")


def settlement(run: Run, outcome: RunOutcome, luck: Callable[[], float]) -> Change:
    """What the outcome makes of the task. The policy is the model's."""
    task, started_at = run.task, run.started_at
    if outcome.handed_back:
        return release(task, outcome.after)
    if outcome.apart:
        return set_apart(task, outcome.error or "")
    if outcome.error is None:
        return complete(task, outcome.result or b"null", started_at=started_at)
    if outcome.permanent:
        return fail(task, outcome.error, started_at=started_at)
    return after_error(task, outcome.error, luck=luck(), after=outcome.after, started_at=started_at)
