"""`tq`: tasks by name, with workers in the same process and a fluent API.

from qo import tq

tq.init("sqlite:///qo.db")
tq("crawl").set_worker(crawl).set_worker_count(3).set_rate_limit(10).set_timeout(300)
tq("crawl").add({"url": "https://example.com/1"}).add({"url": "https://example.com/2"})
tq.stop()
"""

import atexit
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, overload

from msgspec.structs import replace

from qo import destinations
from qo.app import App, background_of
from qo.arguments import PayloadArguments, decode_payload
from qo.client import Client, Settings, describe
from qo.codec import encode_value
from qo.encryption import Encrypted
from qo.errors import InvalidSetting
from qo.executors.child_process import in_child
from qo.hooks import HookDecorators, Hooks
from qo.in_process_worker import InProcessWorker
from qo.model import SLOW_POLICY, RetryPolicy, check_retry, check_type
from qo.notes import Controls
from qo.tasks import Handler, HandlerOptions, Registry, make_options
from qo.worker import WorkerSettings

T = TypeVar("T")

_CONCURRENCY = 100  # of all types in one process
_MAX_ATTEMPTS = 3  # the default


class TaskType(Generic[T]):
    """One task type. Every method returns the object itself."""

    def __init__(self, tq: "TaskQueue", type: str, payload: Any = Any) -> None:
        self._tq, self.type, self._payload = tq, check_type("type", type), payload

    def add(
        self, payload: T, *, max_attempts: int | None = None, run_after: datetime | float | str | None = None
    ) -> Self:
        """Submit a task; returns when it is stored."""
        data = encode_value(payload)
        decode_payload(data, self._payload)
        self._tq.submit(self.type, data, max_attempts=max_attempts, run_after=run_after)
        return self

    def set_worker(self, handler: Callable[[T], Any]) -> Self:
        """Run `handler(payload)`, sync or async, for each task of this type, starting now."""
        self._tq.set_worker(self.type, handler)
        return self

    def remove_worker(self) -> Self:
        """Claim no more tasks of this type in this process. Running tasks continue."""
        self._tq.remove_worker(self.type)
        return self

    def set_worker_count(self, count: int) -> Self:
        """Set how many tasks of this type run concurrently. The default is 1."""
        if count < 1:
            raise InvalidSetting(f"set_worker_count({count!r}): the count must be at least 1")
        self._tq.configure(self.type, concurrency=count)
        return self

    def set_rate_limit(self, tasks_per_second: float) -> Self:
        """Set how many tasks of this type may start per second; 0 for no limit."""
        if not tasks_per_second >= 0:
            raise InvalidSetting(
                f"set_rate_limit({tasks_per_second!r}): pass a number of tasks per second, or 0 for no limit"
            )
        self._tq.configure(self.type, rate_limit=float(tasks_per_second))
        return self

    def set_timeout(self, seconds: float) -> Self:
        """Set the timeout of one attempt in this process, regardless of the timeout it was submitted with."""
        if not seconds > 0:
            raise InvalidSetting(f"set_timeout({seconds!r}): the timeout must be greater than 0")
        self._tq.configure(self.type, timeout=float(seconds))
        return self

    def set_max_attempts(self, attempts: int) -> Self:
        """Set the number of attempts of tasks added from now on. The default is 3."""
        self._tq.configure(self.type, max_retries=_retries(attempts))
        return self

    def set_retry(self, policy: RetryPolicy) -> Self:
        """Set the back-off of tasks added from now on."""
        self._tq.configure(self.type, retry=check_retry(policy))
        return self


class TaskQueue(HookDecorators):
    """`tq`: call it with a type, or control all types."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._options: dict[str, dict[str, Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self._app: App | None = None
        self._settings = WorkerSettings()
        self._task_timeout = 300.0
        self._defaults: dict[str, Any] = {"max_retries": _MAX_ATTEMPTS - 1, "retry": SLOW_POLICY}
        self.registry = Registry()
        self._worker: InProcessWorker | None = None

    def init(
        self,
        url: str | None = None,
        *,
        poll_interval: float = 1.0,
        batch_size: int = 10,
        task_timeout: float = 300.0,
        max_attempts: int = _MAX_ATTEMPTS,
        retry: RetryPolicy = SLOW_POLICY,
        settings: Settings | None = None,
        codec: Encrypted | None = None,
        fail_unknown_types: float | None = None,
    ) -> None:
        """Set the store and the defaults, before any other call. The default store is QO_URL, or a local SQLite file.

        `fail_unknown_types`: seconds after which due tasks of types that were never registered are failed; None: never.
        """
        with self._lock:
            if self._app is not None:
                raise InvalidSetting("call tq.init() once, before any other call; tq.stop() resets it")
            self._use(App(url, settings, codec=codec))
            self._settings = WorkerSettings(
                poll=poll_interval, prefetch=max(batch_size, 1), fail_unknown_types=fail_unknown_types
            )
            self._task_timeout = task_timeout
            self._defaults = {"max_retries": _retries(max_attempts), "retry": check_retry(retry)}

    @property
    def hooks(self) -> Hooks:
        return self.registry.hooks

    @property
    def app(self) -> App:
        """The app, for `qo worker module:tq`."""
        return self._get_app()

    @overload
    def __call__(self, type: str) -> TaskType[Any]: ...
    @overload
    def __call__(self, type: str, payload: "type[T]") -> TaskType[T]: ...
    def __call__(self, type: str, payload: Any = Any) -> TaskType[Any]:
        """A task type. `tq("crawl", Page)` sets the type of its payloads, for type checkers and for validation."""
        return TaskType(self, type, payload)

    def pause(self) -> None:
        """Stop all workers of this store from starting tasks. Running tasks continue."""
        self._call_client(lambda client: client.controls.pause())

    def resume(self) -> None:
        self._call_client(lambda client: client.controls.resume())

    def is_paused(self) -> bool:
        """Whether the workers of this store are paused, by any process."""
        controls: Controls = self._call_client(lambda client: client.controls.read())
        return controls.paused

    def is_running(self) -> bool:
        """Whether a worker runs in this process, paused or not."""
        return self._worker is not None and self._worker.is_running

    def stats(self) -> dict[str, Any]:
        """Counts by status, then by type and queue."""
        counts: dict[str, Any] = self._call_client(lambda client: client.stats())
        return counts

    def stop(self) -> None:
        """Let running tasks finish, release the rest, and close the store. Raises what ended the worker before."""
        with self._lock:
            try:
                if self._worker is not None:
                    self._worker.stop()
            finally:
                if self._app is not None:
                    self._app.close()
                self._reset()

    # --- used by TaskType

    def submit(self, type: str, payload: bytes, *, max_attempts: int | None, run_after: Any) -> None:
        own = self._options.get(type, {})
        options: dict[str, Any] = {"timeout": self._task_timeout} | self._defaults
        options |= {name: own[name] for name in ("timeout", "max_retries", "retry") if name in own}
        options |= {} if max_attempts is None else {"max_retries": _retries(max_attempts)}
        options |= {} if run_after is None else {"run_at": run_after}
        handler = self.registry.get(type)
        if handler is not None:
            handler.arguments.decode(payload)  # raises InvalidTask if the handler does not accept it
        app = self._get_app()
        background_of(app).submit(describe(app.settings, type, payload, **options))

    def set_worker(self, type: str, function: Callable[..., Any]) -> None:
        with self._lock:
            own = self._options.get(type, {})
            options = make_options(function, **{"concurrency": 1} | own)
            arguments, limit = PayloadArguments(function), own.get("timeout")
            handler = Handler(type=type, function=function, options=options, arguments=arguments, time_limit=limit)
            self.registry.replace(handler)
            self._update_worker()

    def remove_worker(self, type: str) -> None:
        with self._lock:
            if self.registry.get(type) is not None:
                self.registry.remove(type)
                self._update_worker()

    def configure(self, type: str, **options: Any) -> None:
        with self._lock:
            self._options[type] = self._options.get(type, {}) | options
            handler = self.registry.get(type)
            if handler is not None:
                changed: HandlerOptions = replace(handler.options, **options)
                limit = options.get("timeout", handler.time_limit)
                self.registry.replace(replace(handler, options=changed, time_limit=limit))
                self._update_worker()

    # --- the worker

    def _get_app(self) -> App:
        with self._lock:
            if self._app is None:
                return self._use(App(destinations.redirect().tq or None))
            return self._app

    def _use(self, app: App) -> App:
        self._app = app
        # When the program exits, the worker must end before the app closes its store: the last function goes first.
        atexit.unregister(self.stop)
        atexit.register(self.stop)
        return app

    def _call_client(self, function: Callable[[Client], Awaitable[T]]) -> T:
        return background_of(self._get_app()).call_client(function)

    def _update_worker(self) -> None:
        """Start the worker of this process, or let it read the changed handlers.

        In the processes of `qo worker`, that worker runs the tasks.
        """
        if destinations.is_pinned() or in_child():
            return
        if self._worker is not None and self._worker.is_running:
            self._worker.refresh()
            return
        app = self._get_app()
        destinations.serve_tq(app.url)
        settings = replace(self._settings, concurrency=_CONCURRENCY)
        self._worker = InProcessWorker(background_of(app), self.registry, settings)


def _retries(attempts: int) -> int:
    if attempts < 1:
        raise InvalidSetting(f"max_attempts={attempts!r} must be at least 1")
    return attempts - 1


tq = TaskQueue()

__all__ = ["TaskQueue", "TaskType", "tq"]
