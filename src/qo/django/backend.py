"""The backend: submits Django's tasks to a qo store, and reads their results.

TASKS = {"default": {"BACKEND": "qo.django.QoBackend", "OPTIONS": {"url": "sqlite:///qo.db"}}}
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil, floor
from typing import Any, cast

from django.db import connections, transaction
from django.utils import timezone

from qo.app import App, background_of
from qo.client import Priority, describe
from qo.codec import encode_value
from qo.destinations import destination
from qo.django.framework import BaseTaskBackend, InvalidTask, Task, TaskResult, TaskResultDoesNotExist, signals
from qo.django.results import new_result, result_of
from qo.errors import InvalidSetting, QoError
from qo.errors import InvalidTask as InvalidNewTask
from qo.model import LOW, MAX_RETRIES, MEDIUM, TIMEOUT, NewTask, check_name, check_type

_HIGHEST, _LOWEST = 100, -100  # priorities of Django
_OPTIONS = {"url", "database", "enqueue_on_commit", "max_retries", "timeout", "codec"}

# Django creates a backend in every thread, and all of them share these.
_apps: dict[str, App] = {}  # by alias
_tasks: dict[str, dict[str, Any]] = {}  # the declared tasks, by alias and type


def declared_tasks(alias: str) -> dict[str, Any]:
    """The tasks that were declared for a backend, by type. No other function can be run."""
    return _tasks.setdefault(alias, {})


class QoBackend(BaseTaskBackend):  # type: ignore[misc]
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        unknown = set(self.options) - _OPTIONS
        if unknown:
            raise InvalidSetting(
                f"TASKS[{alias!r}]['OPTIONS'] has unknown options: {', '.join(sorted(unknown))}; "
                f"known are {', '.join(sorted(_OPTIONS))}"
            )

    @property
    def app(self) -> App:
        """The app of this backend, which all threads share. Changed settings (in tests) replace it."""
        url, codec = self.options.get("url"), self.options.get("codec")
        app = _apps.get(self.alias)
        if app is None or (url is not None and app.url != destination(url)) or app.codec is not codec:
            app = _apps[self.alias] = App(url, codec=codec)
        return app

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        try:
            check_type("task", task.module_path)
            check_name("queue_name", task.queue_name)
        except InvalidNewTask as error:
            raise InvalidTask(str(error)) from error
        declared_tasks(self.alias).setdefault(task.module_path, task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Submit a task; with the option `enqueue_on_commit`, when the current transaction commits."""
        self.validate_task(task)
        result = new_result(task, self.alias, args, kwargs)
        now = timezone.now()
        new = self._describe(task, result, now)
        object.__setattr__(result, "id", new.id)
        database = self.options.get("database")
        if database is not None:
            connections[database].ensure_connection()
            self._submit(new, result, now, connections[database].connection)
        elif self.options.get("enqueue_on_commit", False) and _is_in_transaction():
            transaction.on_commit(lambda: self._submit(new, result, now))
        else:
            self._submit(new, result, now)
        return result

    def _describe(self, task: Any, result: Any, now: datetime) -> NewTask:
        try:
            return describe(
                self.app.settings,
                task.module_path,
                encode_value({"args": result.args, "kwargs": result.kwargs, "enqueued_at": now.isoformat()}),
                queue=task.queue_name,
                priority=level_of(task.priority),
                run_at=task.run_after,
                max_retries=self.options.get("max_retries", MAX_RETRIES),
                timeout=self.options.get("timeout", TIMEOUT),
            )
        except InvalidNewTask as error:
            raise InvalidTask(str(error)) from error

    def _submit(self, new: NewTask, result: Any, now: datetime, connection: Any = None) -> None:
        background_of(self.app).submit(new, connection=connection)
        object.__setattr__(result, "enqueued_at", now)
        signals.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """The current state of a task. Raises TaskResultDoesNotExist."""
        try:
            stored = self.app.get(result_id)
        except InvalidNewTask as error:  # not an id
            raise TaskResultDoesNotExist(result_id) from error
        task = None if stored is None else declared_tasks(self.alias).get(stored.type)
        if stored is None or task is None:
            raise TaskResultDoesNotExist(result_id)
        history = background_of(self.app).call_client(lambda client: client.history(result_id))
        return result_of(task, self.alias, stored, history)

    def check(self, **_: Any) -> list[Any]:
        """For `manage.py check`: whether the store can be opened."""
        from django.core.checks import Error  # noqa: PLC0415 - Django imports backends before its checks

        try:
            self.app.tasks(limit=1)
        except QoError as error:
            return [Error(f"TASKS[{self.alias!r}]: {error}", id="qo.E001")]
        return []


def level_of(priority: int) -> Priority:
    """The level of a priority of Django: 100 is 0, 0 is medium, and -100 is 9. Ten levels cover 201 priorities."""
    levels = ceil(priority / _HIGHEST * MEDIUM) if priority >= 0 else floor(-priority / _LOWEST * (LOW - MEDIUM))
    return cast("Priority", MEDIUM - levels)


def _is_in_transaction() -> bool:
    return bool(connections.settings) and transaction.get_connection().in_atomic_block


__all__ = ["QoBackend", "Task", "TaskResult", "declared_tasks", "level_of"]
