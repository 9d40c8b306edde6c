"""The front door: an application's tasks, declared next to the code that runs them.

app = qo.App("sqlite:///qo.db")

@app.task(retries=5)
async def send_email(to: str, subject: str) -> dict: ...

send_email.enqueue(to="a@example.com", subject="Hi")
"""

import asyncio
import atexit
import inspect
import os
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, overload

from qo.client import Client, Seconds, Settings, connect, describe
from qo.destinations import DEFAULT_URL, destination
from qo.errors import InvalidSetting
from qo.model import Filter, NewTask, RetryPolicy, Task
from qo.sync import LoopThread
from qo.tasks import Handler, HandlerOptions, Registry, make_handler, make_options

__all__ = ["DEFAULT_URL", "App", "Enqueuer", "Submission", "TaskFunction"]

_LAST_ANSWER = 5.0  # seconds a store has to let go when the program ends

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")
T = TypeVar("T")


class Submission(Generic[R]):
    """A task the store has. Its result can be waited for, with or without an event loop."""

    def __init__(self, app: "App", handler: Handler, task_id: str, *, new: bool) -> None:
        self._app, self._handler, self.id, self.new = app, handler, task_id, new

    def result(self, timeout: Seconds | None = None) -> R:
        """Wait for the task to end; its result, or TaskFailed or ResultTimeout."""
        return self._app.run(self._result(timeout))

    async def aresult(self, timeout: Seconds | None = None) -> R:
        return await self._app.arun(self._result(timeout))

    def task(self) -> Task | None:
        """The task as it is now; None if it was deleted."""
        return self._app.run(self._task())

    async def _result(self, timeout: Seconds | None) -> R:
        queue = await self._app.queue()
        result: R = await queue.result(self.id, timeout=timeout, decode=self._handler.decode_result)
        return result

    async def _task(self) -> Task | None:
        return await (await self._app.queue()).get(self.id)

    def __repr__(self) -> str:
        return f"<Submission {self._handler.type} {self.id}>"


class Enqueuer(Generic[P, R]):
    """Submits calls of one function, under given options."""

    def __init__(self, app: "App", handler: Handler, given: dict[str, Any]) -> None:
        self._app, self.handler, self._given = app, handler, given

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Submission[R]:
        """Submit this call; returns when the store has it."""
        return self._app.run(self._submit(self.describe(*args, **kwargs)))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Submission[R]:
        return await self._app.arun(self._submit(self.describe(*args, **kwargs)))

    def describe(self, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The task this call would be: checked, not submitted."""
        options = self.handler.options
        described = {
            "queue": options.queue,
            "priority": options.priority,
            "needs": options.needs,
            "timeout": options.timeout,
            "max_retries": options.max_retries,
            "retry": options.retry,
        }
        payload = self.handler.arguments.encode(args, kwargs)
        given = {name: value for name, value in self._given.items() if name != "connection"}
        return self._app.new_task(self.handler.type, payload, **described | given)

    async def _submit(self, new: NewTask) -> Submission[R]:
        connection = self._given.get("connection")
        if connection is not None and inspect.iscoroutinefunction(connection.commit):
            raise InvalidSetting(
                "an async connection belongs to its own loop: use qo.connect(url) and its enqueue there"
            )
        submitted = await (await self._app.queue()).submit(new, connection=connection)
        return Submission(self._app, self.handler, submitted.id, new=submitted.new)


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
        priority: int | str | None = None,
        needs: Iterable[str] | None = None,
        timeout: Seconds | None = None,
        retries: int | None = None,
        retry: RetryPolicy | None = None,
        delay: Seconds | None = None,
        run_at: Any = None,
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
            "max_retries": retries,
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
        self._thread = LoopThread("qo")
        self._opened: asyncio.Task[Client] | None = None
        self._pid = 0
        atexit.register(self.close, timeout=_LAST_ANSWER)

    @property
    def url(self) -> str:
        """Where tasks go: the URL given, else QO_URL, else a SQLite file in the working directory.

        In a worker, the store it serves goes before them.
        """
        return destination(self._url)

    @url.setter
    def url(self, url: str) -> None:
        if self._opened is not None:
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
        priority: int | str | None = ...,
        needs: Iterable[str] | None = ...,
        timeout: Seconds | None = ...,
        retries: int | None = ...,
        retry: RetryPolicy | None = ...,
        rate_limit: float | None = ...,
        concurrency: int | None = ...,
        executor: str | None = ...,
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

    def new_task(self, type: str, payload: bytes, **options: Any) -> NewTask:
        return describe(self.settings, type, payload, **options)

    async def queue(self) -> Client:
        """The open queue; only on the app's own loop (see `run`)."""
        if self._opened is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._opened = asyncio.create_task(connect(self.url, self.settings).open())
        try:
            return await asyncio.shield(self._opened)
        except Exception:
            self._opened = None  # the next caller tries again
            raise

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's own loop and wait for it."""
        return self._thread.run(coroutine)

    async def arun(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await self._thread.arun(coroutine)

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the app's own loop and go on."""
        return self._thread.submit(coroutine)

    def call(self, function: Callable[[], object]) -> None:
        """Call a plain function on the app's own loop."""

        async def there() -> None:
            function()

        self._thread.run(there())

    def submit(self, tasks: Iterable[NewTask]) -> list[str]:
        """Submit many described tasks at once; their ids."""
        return self.run(self._submit(list(tasks)))

    async def _submit(self, tasks: list[NewTask]) -> list[str]:
        return [submitted.id for submitted in await (await self.queue()).submit_many(tasks)]

    def tasks(self, where: Filter | None = None, *, limit: int = 50) -> list[Task]:
        return self.run(self._tasks(where, limit))

    async def _tasks(self, where: Filter | None, limit: int) -> list[Task]:
        return await (await self.queue()).list(where, limit=limit)

    def close(self, *, timeout: float | None = None) -> None:
        """Let go of the store. The next use opens it again.

        A store that has not answered after `timeout` seconds is left to the end of the process.
        """
        opened, self._opened = self._opened, None
        if opened is None or self._pid != os.getpid():
            return
        closing = self._thread.submit(_close(opened))
        try:
            closing.result(timeout)
        except TimeoutError:
            if not closing.done():
                self._thread = LoopThread("qo")  # the old loop still waits
                return
            raise
        self._thread.stop()


async def _close(opened: asyncio.Task[Client]) -> None:
    try:
        queue = await opened
    except Exception:  # noqa: BLE001 - whoever opened it was told
        return
    await queue.close()
