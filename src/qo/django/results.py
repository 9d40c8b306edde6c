"""Stored tasks as results of Django's tasks."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings

from qo.codec import decode_value
from qo.django.framework import TaskError, TaskResult, TaskResultStatus
from qo.model import Event, FailureKind, Status, Task

_STATUSES = {
    Status.PENDING: TaskResultStatus.READY,
    Status.RUNNING: TaskResultStatus.RUNNING,
    Status.COMPLETED: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
}
_SUMMARY = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)(?::|$)")  # "ValueError: text" or "package.Error"
_EXIT = "the handler called sys.exit("  # the summary of a SystemExit
_OTHER_ERROR = "qo.errors.TaskFailed"  # for failures without an exception of the handler


def new_result(task: Any, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a task that is not stored yet."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def result_of(task: Any, alias: str, stored: Task, history: Sequence[Event]) -> Any:
    """The result of a stored task, with the errors and workers of all attempts."""
    starts = [event for event in history if event.status is Status.RUNNING]
    given = decode_value(stored.payload)
    result = TaskResult(
        task=task,
        id=stored.id,
        status=_STATUSES[stored.ended_as],
        enqueued_at=datetime.fromisoformat(given["enqueued_at"]),
        started_at=_datetime(starts[0].at if starts else None),
        last_attempted_at=_datetime(starts[-1].at if starts else None),
        finished_at=_datetime(stored.completed_at),
        args=given["args"],
        kwargs=given["kwargs"],
        backend=alias,
        errors=_errors(history, stored),
        worker_ids=[event.worker_id or "" for event in starts],
    )
    if stored.result is not None:
        object.__setattr__(result, "_return_value", decode_value(stored.result))
    return result


def _errors(history: Sequence[Event], stored: Task) -> list[Any]:
    texts = [event.error for event in history if event.error is not None and event.status is not Status.RUNNING]
    return [error_of(text, stored.failure_kind) for text in texts]


def error_of(text: str, kind: FailureKind | None) -> Any:
    """An error as Django shows it. The stored text begins with a summary such as `ValueError: text`."""
    if kind is FailureKind.TIMEOUT and text.startswith("timed out"):
        return TaskError(exception_class_path="builtins.TimeoutError", traceback=text)
    summary, _, trace = text.partition("\n")
    if summary.startswith(_EXIT):
        return TaskError(exception_class_path="builtins.SystemExit", traceback=trace)
    name = _SUMMARY.match(summary)
    if name is None or not trace:
        return TaskError(exception_class_path=_OTHER_ERROR, traceback=text)
    path = name[1] if "." in name[1] else f"builtins.{name[1]}"
    return TaskError(exception_class_path=path, traceback=trace)


def _datetime(instant: float | None) -> datetime | None:
    """As `timezone.now()`: aware, or local time if the project uses no time zones."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant, UTC if settings.USE_TZ else None)
