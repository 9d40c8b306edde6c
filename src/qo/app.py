"""The front door: an application's tasks, declared next to the code that runs them.

app = qo.App("sqlite:///qo.db")

@app.task(max_retries=5)
async def send_email(to: str, subject: str) -> dict: ...

send_email.enqueue(to="a@example.com", subject="Hi")
"""

import atexit
import inspect
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from qo.background import BackgroundClient
from qo.client import Priority, Seconds, Settings, TaskOptions, connect, describe
from qo.codec import encode_value
from qo.destinations import DEFAULT_URL, destination
from qo.errors import InvalidSetting
from qo.model import Filter, NewTask, RetryPolicy, Task
from qo.sync import SyncTaskHandle
from qo.tasks import ExecutorName, Handler, HandlerOptions, Registry, make_handler, make_options

__all__ = ["DEFAULT_URL", "App", "Enqueuer", "TaskFunction", "background_of"]

_CLOSE_TIMEOUT = 5.0  # seconds a store has to close when the program ends

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class Enqueuer(Generic[P, R]):
    """Submits calls of one function, under given options."""

    def __init__(self, app: "App", handler: Handler, given: dict[str, Any]) -> None:
        self._app, self.handler, self._given = app, handler, given

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R]:
        """Submit this call; returns when the store has it."""
        background = background_of(self._app)
        handle = background.submit(self.describe(*args, **kwargs), connection=self._connection())
        return SyncTaskHandle(background, handle, self.handler.decode_result)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> SyncTaskHandle[R]:
        background = background_of(self._app)
        handle = await background.asubmit(self.describe(*args, **kwargs), connection=self._connection())
        return SyncTaskHandle(background, handle, self.handler.decode_result)

    def describe(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task this call would be: checked, not submitted."""
        payload = self.handler.arguments.encode(args, kwargs)
        given = {name: value for name, value in self._given.items() if name != "connection"}
        return describe(self._app.settings, self.handler.type, payload, **_declared(self.handler) | given)

    def _connection(self) -> Any:
        connection = self._given.get("connection")
        if connection is not None and inspect.iscoroutinefunction(connection.commit):
            raise InvalidSetting(
                "an async connection belongs to its own loop: use qo.connect(url) and its enqueue there"
            )
        return connection


class TaskFunction(Enqueuer[P, R], Generic[P, R, C]):
    """A function that is also a type of task. Calling it calls the function."""

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
        connection: Any = None,
    ) -> Enqueuer[P, R]:
        """The same task under other options: `send_email.using(delay=60).enqueue(...)`.

        With a psycopg `connection` the task is part of its transaction (Postgres only).
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


class App:
    """Tasks of one program and the store they go to. Nothing is opened before it is needed."""

    def __init__(self, url: str | None = None, settings: Settings | None = None) -> None:
        self._url = url
        self.settings = settings or Settings()
        self.registry = Registry()
        self._background = BackgroundClient(lambda: connect(self.url, self.settings), "qo")
        atexit.register(self.close, timeout=_CLOSE_TIMEOUT)

    @property
    def url(self) -> str:
        """Where tasks go: the URL given, else QO_URL, else a SQLite file in the working directory.

        In a worker, the store it serves goes before them.
        """
        return destination(self._url)

    @url.setter
    def url(self, url: str) -> None:
        if self._background.is_used:
            raise InvalidSetting("the app is in use; set its URL before the first task is submitted")
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
        rate_limit: float | None = ...,
        concurrency: int | None = ...,
        executor: ExecutorName | None = ...,
    ) -> _Declare: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Declare a type of task. The name defaults to the function's; see `qo.tasks.HandlerOptions` for the rest."""
        name = options.pop("name", None)

        def declare(function: Callable[..., Any]) -> TaskFunction[Any, Any, Any]:
            made: HandlerOptions = make_options(function, **options)
            handler = make_handler(function, type=name or function.__name__, options=made)
            self.registry.add(handler)
            return TaskFunction(self, handler)

        return declare(*functions) if functions else declare

    def enqueue(self, type: str, payload: object = None, **options: Unpack[TaskOptions]) -> SyncTaskHandle[Any]:
        """Submit a task by the name of its type, which need not be declared here. Returns when the store has it.

        The payload of a task function is a dict of its arguments. If the type is declared here, its options hold.
        """
        background = self._background
        return SyncTaskHandle(background, background.submit(self._describe(type, payload, options)))

    async def aenqueue(self, type: str, payload: object = None, **options: Unpack[TaskOptions]) -> SyncTaskHandle[Any]:
        background = self._background
        return SyncTaskHandle(background, await background.asubmit(self._describe(type, payload, options)))

    def _describe(self, type: str, payload: object, options: TaskOptions) -> NewTask:
        handler = self.registry.get(type)
        data = encode_value(payload)
        if handler is None:
            return describe(self.settings, type, data, **options)
        handler.arguments.decode(data)  # raises InvalidTask for what the function does not take
        given: dict[str, Any] = {**_declared(handler), **options}
        return describe(self.settings, type, data, **given)

    def submit(self, tasks: Iterable[NewTask]) -> list[str]:
        """Submit many described tasks at once (`send_email.describe(...)`); their ids."""
        described = list(tasks)
        return [handle.id for handle in self._background.ask(lambda client: client.submit_many(described))]

    async def asubmit(self, tasks: Iterable[NewTask]) -> list[str]:
        described = list(tasks)
        return [handle.id for handle in await self._background.aask(lambda client: client.submit_many(described))]

    def get(self, task_id: str) -> Task | None:
        """The task as it is now; None if there is none."""
        return self._background.ask(lambda client: client.get(task_id))

    async def aget(self, task_id: str) -> Task | None:
        return await self._background.aask(lambda client: client.get(task_id))

    def tasks(self, where: Filter | None = None, *, limit: int = 50) -> list[Task]:
        """The newest tasks that match."""
        return self._background.ask(lambda client: client.list(where, limit=limit))

    async def atasks(self, where: Filter | None = None, *, limit: int = 50) -> list[Task]:
        return await self._background.aask(lambda client: client.list(where, limit=limit))

    def cancel(self, task_id: str) -> None:
        """Raises WrongStatus if the task has ended, TaskNotFound if there is none."""
        self._background.ask(lambda client: client.cancel(task_id))

    async def acancel(self, task_id: str) -> None:
        await self._background.aask(lambda client: client.cancel(task_id))

    def replay(self, task_id: str) -> None:
        """Send a finished task back to the start. Raises WrongStatus if it has not ended."""
        self._background.ask(lambda client: client.replay(task_id))

    async def areplay(self, task_id: str) -> None:
        await self._background.aask(lambda client: client.replay(task_id))

    def close(self, *, timeout: float | None = None) -> None:
        """Let go of the store. The next use opens it again.

        A store that has not answered after `timeout` seconds is left to the end of the process.
        """
        self._background.close(timeout=timeout)


def background_of(app: App) -> BackgroundClient:
    """The client of an app and the loop it runs on, for what is built on an app: the worker's command, `qo.tq`."""
    return app._background  # noqa: SLF001 - no part of the public interface


def _declared(handler: Handler) -> dict[str, Any]:
    """The options of a type of task that concern its submission."""
    options = handler.options
    return {
        "queue": options.queue,
        "priority": options.priority,
        "needs": options.needs,
        "timeout": options.timeout,
        "max_retries": options.max_retries,
        "retry": options.retry,
    }
