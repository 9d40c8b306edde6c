"""The task whose handler is running, as the handler sees it, and the progress that it reports."""

from contextvars import ContextVar
from math import isfinite
from typing import Protocol, TypeAlias

from msgspec import Struct

from qo.codec import plain_task
from qo.errors import InvalidSetting
from qo.model import FailureKind, Task, is_a

ProgressReport: TypeAlias = tuple[float, str | None]  # 0 to 1, and what the handler is doing

running: ContextVar[Task] = ContextVar("qo_task")


class RunningAttempt(Protocol):
    """The attempt at the task that is running. It keeps the last progress report and the last log lines."""

    def report_progress(self, report: ProgressReport, /) -> None: ...

    def add_log_line(self, line: str, /) -> None: ...


running_attempt: ContextVar[RunningAttempt] = ContextVar("qo_attempt")


class RunningTask(Struct, frozen=True, kw_only=True):
    """The task whose handler is running. `attempt` grows with every claim and can be used as a fencing token."""

    id: str
    queue: str
    type: str
    payload: bytes  # `qo.decode` returns the value
    priority: int  # 0 to 9, lower first
    needs: tuple[str, ...]  # capabilities that a worker must have
    timeout: float  # seconds for the first attempt
    max_retries: int
    attempt: int  # the number of this attempt, from 1 on
    failures: int  # attempts that failed so far
    error: str | None  # of the last failed attempt
    failure_kind: FailureKind | None  # of `error`
    worker_id: str | None
    created_at: float  # seconds since 1970, like all times
    available_at: float  # when this attempt became due
    started_at: float | None
    run_at: float | None  # the time for which the task was submitted; of a schedule, the fire time plus jitter
    idempotency_key: str | None
    trace_id: str | None
    batch: str | None  # the batch that it belongs to

    def progress(self, share: float, text: str | None = None) -> None:
        """Report how much is done, from 0 to 1, and what is being done.

        The report is stored with the next renewal of the lease, so reporting often costs nothing.
        """
        if not is_a(share, int, float) or not isfinite(share) or not 0 <= share <= 1:
            raise InvalidSetting(f"progress({share!r:.40}): the first argument is a number from 0 to 1")
        if text is not None and not isinstance(text, str):
            raise InvalidSetting(f"progress(..., {text!r:.40}): the second argument is text")
        attempt = running_attempt.get(None)
        if attempt is not None:
            attempt.report_progress((float(share), text))


_FIELDS = RunningTask.__struct_fields__


def current_task() -> RunningTask:
    """The task whose handler is running."""
    try:
        task = plain_task(running.get())
    except LookupError:
        raise InvalidSetting("current_task() can be called only inside a handler that a worker runs") from None
    return RunningTask(**{name: getattr(task, name) for name in _FIELDS})
