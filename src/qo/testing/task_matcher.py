"""Selects the submitted tasks that a test names: by type, arguments and options."""

import inspect
from collections.abc import Mapping
from typing import Any, TypeAlias

from qo.app import App, Enqueuer
from qo.client import describe
from qo.codec import decode_value
from qo.errors import InvalidSetting
from qo.model import Task
from qo.tasks import Handler

TaskName: TypeAlias = Enqueuer[..., Any] | str

_MAX_SHOWN_LENGTH = 200  # characters of a payload in a message
_MAX_DELAY_ERROR = 0.001  # seconds; the creation times of a batch differ by microseconds


class TaskMatcher:
    """Matches tasks of one type whose arguments and options include the given ones."""

    def __init__(self, app: App, task: TaskName, arguments: Mapping[str, object]) -> None:
        self._handler = app.registry.get(task) if isinstance(task, str) else task.handler
        self._type = task if isinstance(task, str) else task.handler.type
        self._options = {} if isinstance(task, str) else task.options
        self._arguments = arguments
        self._wanted = describe(app.settings, self._type, b"null", **self._options)
        if self._handler is not None:
            _check_arguments(self._handler, arguments)

    def matches(self, task: Task) -> bool:
        return task.type == self._type and self._has_arguments(task) and self._has_options(task)

    def _has_arguments(self, task: Task) -> bool:
        if not self._arguments:
            return True
        given = decode_value(task.payload) if self._handler is None else self._handler.arguments.decode(task.payload)[1]
        return isinstance(given, Mapping) and all(
            name in given and given[name] == value for name, value in self._arguments.items()
        )

    def _has_options(self, task: Task) -> bool:
        return all(self._has_option(name, task) for name in self._options)

    def _has_option(self, name: str, task: Task) -> bool:
        if name == "delay":
            return abs(task.available_at - task.created_at - self._wanted.delay) < _MAX_DELAY_ERROR
        return bool(getattr(task, name) == getattr(self._wanted, name))

    def options_of(self, task: Task) -> str:
        """The values of the requested options in this task, for a message."""
        return "".join(f", {name}={_option_of(task, name)!r}" for name in self._options if name != "queue")

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"{self._type}({arguments})" + (f" with {options}" if options else "")


def _option_of(task: Task, name: str) -> object:
    return round(task.available_at - task.created_at, 3) if name == "delay" else getattr(task, name)


def check_task(task: object) -> None:
    """The name of a type does not say how to encode the arguments."""
    if not isinstance(task, Enqueuer):
        raise InvalidSetting(f"run({task!r:.80}): pass a function decorated with @app.task")


def _check_arguments(handler: Handler, arguments: Mapping[str, object]) -> None:
    """Refuse names that the function does not have: no task could match them."""
    try:
        inspect.signature(handler.function).bind_partial(**arguments)
    except TypeError as error:
        raise InvalidSetting(f"{handler.type}() {error}") from error


def shown(payload: bytes) -> str:
    """A payload for a message."""
    text = repr(decode_value(payload))
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[:_MAX_SHOWN_LENGTH]}..."
