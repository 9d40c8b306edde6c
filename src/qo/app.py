"""`App` and `@app.task`: tasks are declared as functions and submitted by calls of `enqueue`.

app = qo.App("sqlite:///qo.db")

@app.task(max_retries=5)
async def send_email(to: str, subject: str) -> dict: ...

send_email.enqueue(to="a@example.com", subject="Hi")
"""

import atexit
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from qo.background import BackgroundClient
from qo.client import Priority, Seconds, Settings, TaskOptions, connect, describe
from qo.client.describe import check_option_names
from qo.client.schedules import ScheduleOptions, TimingOptions, schedule_of
from qo.codec import encode_value
from qo.destinations import DEFAULT_URL, destination
from qo.encryption import Encrypted, check_codec
from qo.errors import InvalidSetting
from qo.hooks import HookDecorators, Hooks
from qo.model import Filter, Limit, NewTask, RetryPolicy, Task, Unique
from qo.sync import SyncTaskHandle
from qo.sync_schedules import SyncSchedules
from qo.tasks import ExecutorName, Handler, HandlerOptions, Registry, function_name, make_handler, make_options
from qo.workflow import Signature, Workflow
from qo.workflow_run import WorkflowRun

if TYPE_CHECKING:
    from qo.testing.app_tester import AppTester

__all__ = ["DEFAULT_URL", "App", "Enqueuer", "TaskFunction", "background_of", "replace_background"]

_CLOSE_TIMEOUT = 5.0  # seconds to close the store when the program exits
_SUBMITTED_OPTIONS = "queue", "priority", "needs", "timeout", "max_retries", "retry", "unique", "limit", "fair_by"
_DEFAULT_OPTIONS = HandlerOptions()  # as those of `describe`

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
F = TypeVar("F")


class Enqueuer(Generic[P, R]):
    """Submits calls of one function, with given options."""

    def __init__(self, app: "App", handler: Handler, options: dict[str, Any]) -> None:
        self._app, self.handler, self._options = app, handler, options
        self._all_options = {**_declared(handler), **self.options}

    @property
    def options(self) -> dict[str, Any]:
        """The options of `using` that apply to the task itself."""
        return {name: value for name, value in self._options.items() if name != "connection"}

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R]:
        """Submit this call as a task; returns when it is stored."""
        background = background_of(self._app)
        handle = background.submit(self.describe(*args, **kwargs), connection=self._connection())
        return SyncTaskHandle(background, handle, self.handler.decode_result)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R]:
        background = background_of(self._app)
        handle = await background.asubmit(self.describe(*args, **kwargs), connection=self._connection())
        return SyncTaskHandle(background, handle, self.handler.decode_result)

    def describe(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The validated task of this call, which is not submitted."""
        payload = self.handler.arguments.encode(args, kwargs)
        return describe(self._app.settings, self.handler.type, payload, **self._all_options)

    # The first form is for editors, which show the arguments. The second one lets type checkers accept handles and open
    # arguments, for which Python has no type; so they accept any call, and `s` itself checks it when it is called.
    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]: ...
    @overload
    def s(self, *args: Any, **kwargs: Any) -> Signature[R]: ...
    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """This call as a part of a workflow. Arguments may be handles of other tasks, whose results are then passed.

        Raises InvalidTask if an argument is unknown or has the wrong type.
        """
        arguments = self.handler.arguments.bind_some(args, kwargs)
        return Signature(self._app, lambda: background_of(self._app), self.handler, arguments, self._options)

    def _connection(self) -> Any:
        connection = self._options.get("connection")
        if connection is not None and inspect.iscoroutinefunction(connection.commit):
            raise InvalidSetting(
                "an async connection works only on its own event loop; use qo.connect(url) and its enqueue there"
            )
        return connection


class TaskFunction(Enqueuer[P, R], Generic[P, R, C]):
    """A function that is also a task type. Calling it calls the function."""

    def __init__(self, app: "App", handler: Handler) -> None:
        super().__init__(app, handler, {})
        self.__name__, self.__doc__ = handler.function.__name__, handler.function.__doc__
        self.__module__, self.__wrapped__ = handler.function.__module__, handler.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        result: C = self.handler.function(*args, **kwargs)
        return result

    def using(
        self,
        *,
        queue: str | None = None,
        priority: Priority | None = None,
        needs: Iterable[str] | None = None,
        timeout: Seconds | None = None,
        max_retries: int | None = None,
        retry: RetryPolicy | None = None,
        delay: Seconds | None = None,
        run_at: datetime | float | None = None,
        idempotency_key: str | None = None,
        trace_id: str | None = None,
        batch: str | None = None,
        unique: Unique | None = None,
        limit: Limit | None = None,
        fair_by: str | None = None,
        connection: Any = None,
    ) -> Enqueuer[P, R]:
        """The same function with other options: `send_email.using(delay=60).enqueue(...)`.

        The options mean the same as in `TaskOptions`, and override those of `@app.task`. With a psycopg `connection`
        the task is part of its transaction (Postgres only).
        """
        given = {
            "queue": queue,
            "priority": priority,
            "needs": needs,
            "timeout": timeout,
            "max_retries": max_retries,
            "retry": retry,
            "delay": delay,
            "run_at": run_at,
            "idempotency_key": idempotency_key,
            "trace_id": trace_id,
            "batch": batch,
            "unique": unique,
            "limit": limit,
            "fair_by": fair_by,
            "connection": connection,
        }
        return Enqueuer(self._app, self.handler, {name: value for name, value in given.items() if value is not None})

    def __repr__(self) -> str:
        return f"<task {self.handler.type}>"


class _Declare(Protocol):
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R, R]: ...


class App(HookDecorators):
    """The tasks of a program and their store. The store is opened on first use.

    `url` selects the store; without it, `QO_URL` or a SQLite file in the working directory is used. `codec` encrypts
    payloads, results and errors.
    """

    def __init__(
        self, url: str | None = None, settings: Settings | None = None, *, codec: Encrypted | None = None
    ) -> None:
        check_codec(codec)
        self._url = url
        self.codec = codec
        self.settings = settings or Settings()
        self.registry = Registry()
        self._background = BackgroundClient(lambda: connect(self.url, self.settings, codec=codec), "qo")
        self.schedules = SyncSchedules(lambda: self._background, self._describe)
        atexit.register(self.close, timeout=_CLOSE_TIMEOUT)

    @property
    def hooks(self) -> Hooks:
        return self.registry.hooks

    @property
    def url(self) -> str:
        """The store: the URL passed to App, else QO_URL, else a SQLite file in the working directory.

        `qo worker --url` overrides them in its processes.
        """
        return destination(self._url)

    @url.setter
    def url(self, url: str) -> None:
        if self._background.is_used:
            raise InvalidSetting("the app is already in use; set its URL before the first call")
        self._url = url

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> TaskFunction[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = ...,
        queue: str | None = ...,
        priority: Priority | None = ...,
        needs: Iterable[str] | None = ...,
        timeout: Seconds | None = ...,
        max_retries: int | None = ...,
        retry: RetryPolicy | None = ...,
        unique: Unique | None = ...,
        limit: Limit | None = ...,
        fair_by: str | None = ...,
        rate_limit: float | None = ...,
        concurrency: int | None = ...,
        executor: ExecutorName | None = ...,
    ) -> _Declare: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Declare a task type: `@app.task`, or `@app.task(max_retries=5)`.

        `name` defaults to that of the function. The other options are those of `HandlerOptions`.
        """
        name = options.pop("name", None)

        def declare(function: Callable[..., Any]) -> TaskFunction[Any, Any, Any]:
            handler_options: HandlerOptions = make_options(function, **options)
            handler = make_handler(
                function, type=function_name(function) if name is None else name, options=handler_options
            )
            self.registry.add(handler)
            return TaskFunction(self, handler)

        return declare(*functions) if functions else declare

    def schedule(
        self,
        cron: str | None = None,
        *,
        name: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **timing: Unpack[TimingOptions],
    ) -> Callable[[F], F]:
        """Submit a task at fire times: `@app.schedule("0 3 * * *", timezone="Europe/Berlin")` above `@app.task`.

        The schedule is registered when a worker starts. Its name defaults to the type of the task.
        """
        options: ScheduleOptions = {"cron": cron, **timing}

        def declare(function: F) -> F:
            if not isinstance(function, Enqueuer):
                raise InvalidSetting("@app.schedule must be above @app.task")
            new = function.describe(**kwargs or {})
            self.registry.add_schedule(schedule_of(function.handler.type if name is None else name, new, options))
            return function

        return declare

    def enqueue(self, type: str, payload: object = None, **options: Unpack[TaskOptions]) -> SyncTaskHandle[Any]:
        """Submit a task by the name of its type; returns when it is stored.

        The payload of a task function is a dict of its arguments. If this app declares the type, its options apply.
        """
        background = self._background
        return SyncTaskHandle(background, background.submit(self._describe(type, payload, options)))

    async def aenqueue(self, type: str, payload: object = None, **options: Unpack[TaskOptions]) -> SyncTaskHandle[Any]:
        background = self._background
        return SyncTaskHandle(background, await background.asubmit(self._describe(type, payload, options)))

    def _describe(self, type: str, payload: object, options: TaskOptions) -> NewTask:
        check_option_names(options)
        handler = self.registry.get(type)
        data = encode_value(payload)
        if handler is None:
            return describe(self.settings, type, data, **options)
        handler.arguments.decode(data)  # raises InvalidTask if the function does not accept the payload
        all_options: dict[str, Any] = {**_declared(handler), **options}
        return describe(self.settings, type, data, **all_options)

    def workflow(self, name: str) -> Workflow:
        """A new workflow: tasks that wait for each other (docs/workflows.md)."""
        return Workflow(self, lambda: self._background, name)

    def get_workflow(self, id: str) -> WorkflowRun:
        """A workflow that was submitted before. Its methods raise WorkflowNotFound if it does not exist."""
        return WorkflowRun(self._background, self.registry, id)

    def submit(self, tasks: Iterable[NewTask]) -> list[str]:
        """Submit many tasks from `describe` at once; returns their ids."""
        new_tasks = list(tasks)
        return [handle.id for handle in self._background.call_client(lambda client: client.submit_many(new_tasks))]

    async def asubmit(self, tasks: Iterable[NewTask]) -> list[str]:
        new_tasks = list(tasks)
        return [
            handle.id for handle in await self._background.acall_client(lambda client: client.submit_many(new_tasks))
        ]

    def get(self, task_id: str) -> Task | None:
        """The current state of a task; None if it does not exist."""
        return self._background.call_client(lambda client: client.get(task_id))

    async def aget(self, task_id: str) -> Task | None:
        return await self._background.acall_client(lambda client: client.get(task_id))

    def tasks(self, where: Filter | None = None, *, limit: int = 50) -> list[Task]:
        """The newest matching tasks."""
        return self._background.call_client(lambda client: client.list(where, limit=limit))

    async def atasks(self, where: Filter | None = None, *, limit: int = 50) -> list[Task]:
        return await self._background.acall_client(lambda client: client.list(where, limit=limit))

    def cancel(self, task_id: str) -> None:
        """Cancel a task. Raises WrongStatus if it has finished, TaskNotFound if it does not exist."""
        self._background.call_client(lambda client: client.cancel(task_id))

    async def acancel(self, task_id: str) -> None:
        await self._background.acall_client(lambda client: client.cancel(task_id))

    def replay(self, task_id: str, *, completed: bool = False) -> None:
        """Run a failed, cancelled or archived task again, with `completed` also a completed one.

        Raises WrongStatus for other tasks.
        """
        self._background.call_client(lambda client: client.replay(task_id, completed=completed))

    async def areplay(self, task_id: str, *, completed: bool = False) -> None:
        await self._background.acall_client(lambda client: client.replay(task_id, completed=completed))

    def run_now(self, task_id: str) -> None:
        """Make a task due now that is scheduled for later or waits for a retry. Raises WrongStatus for other tasks."""
        self._background.call_client(lambda client: client.run_now(task_id))

    async def arun_now(self, task_id: str) -> None:
        await self._background.acall_client(lambda client: client.run_now(task_id))

    def reschedule(self, task_id: str, run_at: datetime | float) -> None:
        """Change when a pending task becomes due. Raises WrongStatus for other tasks."""
        self._background.call_client(lambda client: client.reschedule(task_id, run_at))

    async def areschedule(self, task_id: str, run_at: datetime | float) -> None:
        await self._background.acall_client(lambda client: client.reschedule(task_id, run_at))

    def set_priority(self, task_id: str, priority: Priority) -> None:
        """Move a pending task to another priority. Raises WrongStatus for other tasks."""
        self._background.call_client(lambda client: client.set_priority(task_id, priority))

    async def aset_priority(self, task_id: str, priority: Priority) -> None:
        await self._background.acall_client(lambda client: client.set_priority(task_id, priority))

    def test_mode(
        self, *, now: datetime | float | None = None, state: object = None
    ) -> AbstractContextManager["AppTester"]:
        """Keep the tasks of this app in memory, and run them when a test requests it (docs/testing.md).

        Time starts at `now`, or at the current time, and stands still. The lifespan is not entered: `state` takes the
        place of what it yields.
        """
        from qo.testing.app_tester import enter_test_mode  # noqa: PLC0415 - programs do not load the test tools

        return enter_test_mode(self, now=now, state=state)

    def close(self, *, timeout: float | None = None) -> None:
        """Close the store. The next use opens it again.

        If closing takes longer than `timeout` seconds, it continues in the background.
        """
        self._background.close(timeout=timeout)


def background_of(app: App) -> BackgroundClient:
    """The client of an app and its event loop, for `qo worker` and `qo.tq`."""
    return app._background  # noqa: SLF001 - not part of the public interface


def replace_background(app: App, background: BackgroundClient) -> BackgroundClient:
    """Let an app use another client, for its test mode; returns the one it used before."""
    before, app._background = app._background, background  # noqa: SLF001 - not part of the public interface
    return before


def _declared(handler: Handler) -> dict[str, Any]:
    """The declared options that apply to submissions and are not the default of every task."""
    given = {name: getattr(handler.options, name) for name in _SUBMITTED_OPTIONS}
    return {name: value for name, value in given.items() if value != getattr(_DEFAULT_OPTIONS, name)}
