"""Reports failed attempts to Sentry: one event for each, with the task's id, type and attempt.

import qo.sentry, sentry_sdk

sentry_sdk.init(dsn="https://...")
qo.sentry.install(app)
"""

import logging
import multiprocessing
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from qo.errors import InvalidSetting, Retry
from qo.hooks import CallNext, HookDecorators, TaskEvent
from qo.model import FailureKind, Task

try:
    import sentry_sdk
except ImportError as missing:
    raise InvalidSetting("qo.sentry needs another package: pip install sentry-sdk") from missing

log = logging.getLogger(__name__)
_FLUSH_TIMEOUT = 2.0  # seconds
_NOT_RAISED = (FailureKind.TIMEOUT, FailureKind.LOST)  # the handler was stopped from outside, or its process died


def install(app: HookDecorators) -> None:
    """Report the failed attempts of this app. Call it once, after `sentry_sdk.init`."""
    app.middleware(report_errors)
    app.on("task_retrying")(report_stops)
    app.on("task_failed")(report_stops)


async def report_errors(task: Task, call_next: CallNext) -> Any:
    """Report what the handler raises, with its stack. `qo.Retry` is a decision of the handler and not reported."""
    with _scope(task):
        try:
            return await call_next()
        except (Retry, CancelledError):
            raise
        except (Exception, SystemExit) as error:
            sentry_sdk.capture_exception(error)
            if multiprocessing.parent_process() is not None:
                _warn_if_not_initialised()
                sentry_sdk.flush(_FLUSH_TIMEOUT)  # a child process may be killed at any time
            raise


def report_stops(event: TaskEvent) -> None:
    """Report attempts that reached their timeout, and attempts whose process died."""
    if event.kind in _NOT_RAISED:
        with _scope(event.task):
            sentry_sdk.capture_message((event.error or "").partition("\n")[0], level="error")


@cache
def _warn_if_not_initialised() -> None:
    """Once per process: a child process does not run the module that started the worker."""
    if not sentry_sdk.get_client().is_active():
        log.warning(
            "Sentry gets no exceptions from this child process: call sentry_sdk.init in the module of the handler, "
            "or in one that it imports"
        )


@contextmanager
def _scope(task: Task) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("qo.task_id", task.id)
        scope.set_tag("qo.type", task.type)
        scope.set_tag("qo.attempt", task.attempt)
        scope.set_context("qo", {"id": task.id, "type": task.type, "queue": task.queue, "attempt": task.attempt})
        scope.set_transaction_name(task.type, source="task")
        yield
