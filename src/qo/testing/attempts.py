"""One attempt at a task, run inline in the thread of a test. No lease is renewed and no timeout enforced."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from typing import Any

from msgspec import Struct

from qo.client import Client
from qo.codec import plain_task
from qo.errors import InvalidTask
from qo.executors.handler_thread import call_without_loop
from qo.executors.run import Run, RunOutcome, encode_result, outcome_of, settlement
from qo.hooks import Hooks, TaskEvent, TaskEventName, WorkerContext, call_through, working
from qo.model import LEASE, Status, Task, renew
from qo.running_task import ProgressReport, running, running_attempt
from qo.tasks import Executor, Handler

_MIDDLE = 0.5  # the random number of a test: back-off without jitter
_EVENTS: dict[Status, TaskEventName] = {
    Status.COMPLETED: "task_succeeded",
    Status.PENDING: "task_retrying",
    Status.FAILED: "task_failed",
}
_ENDS_ATTEMPT = (Exception, SystemExit, asyncio.CancelledError)  # others, such as pytest.fail, end the test


class Attempt(Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    task: Task  # after the attempt: pending if it is retried
    result: Any = None  # what the handler returned, as the caller of `handle.result()` gets it
    exception: BaseException | None = None  # what the handler raised

    @property
    def status(self) -> Status:
        return self.task.status

    @property
    def error(self) -> str | None:
        """The stored error: a summary and the traceback."""
        return self.task.error


class InlineRun:
    """Runs an attempt with the middleware and callbacks of its app, and settles its task."""

    def __init__(self, task: Task, handler: Handler, limit: int, hooks: Hooks, worker: WorkerContext) -> None:
        self._task, self._handler, self._limit = task, handler, limit
        self._hooks, self._worker = hooks, worker
        self._outcome = RunOutcome()
        self._progress: ProgressReport | None = None
        self.exception: BaseException | None = None

    def run(self, runner: Callable[[], asyncio.Runner]) -> None:
        """Call the handler; an async one on the event loop of `runner`."""
        context = self._context()
        self._announce("task_started")
        try:
            value = self._call(context)
            if inspect.isawaitable(value):
                value = runner().run(_await(value), context=context)
            self._outcome = encode_result(value, self._limit)
        except _ENDS_ATTEMPT as error:
            self._fail(error)

    async def arun(self) -> None:
        """Call the handler; an async one on the running event loop."""
        context = self._context()
        self._announce("task_started")
        try:
            value = self._call(context)
            if inspect.isawaitable(value):
                value = await asyncio.get_running_loop().create_task(_await(value), context=context)
            self._outcome = encode_result(value, self._limit)
        except _ENDS_ATTEMPT as error:
            self._fail(error)

    def announce_end(self, attempt: Attempt) -> None:
        """Call the callbacks for the outcome of a stored task. What they raise fails the test."""
        if (name := _EVENTS.get(attempt.status)) is not None:
            delay = max(0.0, attempt.task.available_at - attempt.task.updated_at) if name == "task_retrying" else None
            self._announce(name, error=attempt.error, kind=attempt.task.failure_kind, delay=delay)

    def _announce(self, name: TaskEventName, **facts: Any) -> None:
        for callback in self._hooks.callbacks(name):
            callback(TaskEvent(name=name, task=plain_task(self._task), worker_id=self._worker.id, **facts))

    def _context(self) -> Context:
        context = copy_context()
        context.run(running.set, self._task)
        context.run(working.set, self._worker)
        context.run(running_attempt.set, self)
        return context

    def report_progress(self, report: ProgressReport) -> None:
        self._progress = report

    def add_log_line(self, line: str) -> None:
        """Lines of tests are not kept: the test runner captures them."""

    def _call(self, context: Context) -> Any:
        """The result of the handler, or an awaitable of it."""
        if self._hooks.middleware:
            return call_through(self._hooks.middleware, plain_task(self._task), self._call_handler)
        args, kwargs = self._handler.arguments.decode(self._task.payload)
        return context.run(self._call_function, args, kwargs)

    async def _call_handler(self) -> Any:
        args, kwargs = self._handler.arguments.decode(self._task.payload)
        value = self._call_function(args, kwargs)
        return await value if inspect.isawaitable(value) else value

    def _call_function(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._handler.options.executor is Executor.ASYNC:
            return self._handler.function(*args, **kwargs)
        return call_without_loop(self._handler.function, args, kwargs)

    def _fail(self, error: BaseException) -> None:
        self.exception, self._outcome = error, outcome_of(self._task, error)

    @property
    def result(self) -> Any:
        """The stored result, decoded. Raises what the handler raised, or InvalidTask if it cannot be stored."""
        if self.exception is not None:
            raise self.exception
        if self._outcome.result is None:
            raise InvalidTask("result", self._outcome.error or "cannot be stored")
        return self._handler.decode_result(self._outcome.result)

    async def settle(self, client: Client) -> Attempt:
        """Write the outcome as a worker does."""
        run = Run(self._task, self._handler, lambda *_: None)
        run.began = run.received
        if self._progress is not None:
            share, text = self._progress
            await client.engine.apply([renew(self._task, LEASE, progress=share, progress_text=text)])
        await client.engine.apply([settlement(run, self._outcome, lambda: _MIDDLE)])
        (task,) = await client.engine.get([self._task.id])
        result = None if self._outcome.result is None else self._handler.decode_result(self._outcome.result)
        return Attempt(task=task or self._task, result=result, exception=self.exception)


async def _await(value: Any) -> Any:
    return await value
