"""The app that `manage.py qo_worker` runs: `qo.django.worker_app:ALIAS` has a handler for each task of a backend.

A worker runs only functions that are declared as tasks in the `tasks` modules of the installed apps. The store names
the function, but nothing in the store makes a worker import one.
"""

import traceback
from collections.abc import Callable
from typing import Any

import django
from django.conf import settings
from django.db import close_old_connections
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from qo.app import App, background_of
from qo.django.backend import QoBackend, declared_tasks
from qo.django.framework import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from qo.django.results import result_of
from qo.errors import Fail, InvalidSetting
from qo.running_task import running
from qo.tasks import make_handler, make_options


def __getattr__(alias: str) -> App:
    if alias.startswith("_"):
        raise AttributeError(alias)
    if not settings.configured or not django.apps.apps.ready:
        django.setup()
    return worker_app(alias)


def worker_app(alias: str) -> App:
    """The app of a backend, with a handler for each of its tasks."""
    if alias not in getattr(settings, "TASKS", {}):
        raise InvalidSetting(f"settings.TASKS has no backend {alias!r}; it has {', '.join(settings.TASKS)}")
    autodiscover_modules("tasks")
    app = QoBackend(alias, settings.TASKS[alias]).app
    for path, task in declared_tasks(alias).items():
        function = _handler(app, alias, task)
        app.registry.replace(make_handler(function, type=path, options=make_options(function)))
    return app


def _handler(app: App, alias: str, task: Any) -> Callable[..., Any]:
    def run(args: list[Any], kwargs: dict[str, Any], enqueued_at: str) -> Any:  # noqa: ARG001 - part of the payload
        stored = running.get()
        history = background_of(app).call_client(lambda client: client.history(stored.id))
        result = result_of(task, alias, stored, history)
        close_old_connections()
        signals.task_started.send_robust(sender=QoBackend, task_result=result)
        try:
            context = (TaskContext(task_result=result),) if task.takes_context else ()
            value = normalize_json(task.call(*context, *args, **kwargs))
        except BaseException as error:
            if isinstance(error, Fail) or stored.failures >= stored.max_retries:
                _finish(result, TaskResultStatus.FAILED, error)
            raise
        else:
            object.__setattr__(result, "_return_value", value)
            _finish(result, TaskResultStatus.SUCCESSFUL)
            return value
        finally:
            close_old_connections()

    run.__name__ = task.name
    return run


def _finish(result: Any, status: Any, error: BaseException | None = None) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    if error is not None:
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        trace = "".join(traceback.format_exception(error))
        result.errors.append(TaskError(exception_class_path=path, traceback=trace))
    signals.task_finished.send_robust(sender=QoBackend, task_result=result)
