"""Handlers: the functions of task types, and their options."""

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from qo.arguments import SignatureArguments, type_hints
from qo.codec import decode_value
from qo.errors import InvalidSetting, InvalidTask
from qo.hooks import Hooks
from qo.model import (
    DEFAULT_POLICY,
    MAX_RETRIES,
    MEDIUM,
    TIMEOUT,
    Limit,
    RetryPolicy,
    Unique,
    check_declared,
    check_name,
    check_names,
    check_number,
    check_retry,
    check_type,
    check_unique,
    check_whole,
    group_by,
    level,
)
from qo.model.text import unknown_options
from qo.schedules.schedule import Schedule

ExecutorName: TypeAlias = Literal["async", "thread", "process"]


class Executor(StrEnum):
    __hash__ = str.__hash__  # the hash of an enum is slow

    ASYNC = "async"  # on an event loop of the worker; the default for `async def`
    THREAD = "thread"  # in a thread; the default for `def`
    PROCESS = "process"  # in a child process, which is killed at the timeout


class HandlerOptions(Struct, frozen=True, kw_only=True):
    """How tasks of a type are submitted and run. Options of a call override them."""

    queue: str = "default"
    priority: int = MEDIUM  # 0 to 9, lower first; "high" is 0, "medium" 6, "low" 9
    needs: tuple[str, ...] = ()  # capabilities that a worker must have
    timeout: float = TIMEOUT  # seconds for one attempt
    max_retries: int = MAX_RETRIES
    retry: RetryPolicy = DEFAULT_POLICY  # the back-off between attempts
    rate_limit: float = 0.0  # tasks per second started by one worker; 0 for no limit
    concurrency: int = 0  # concurrent tasks of this type in one worker; 0 for no separate limit
    executor: Executor = Executor.THREAD
    unique: Unique | None = None  # at most one task with the same arguments
    limit: Limit | None = None  # of all workers together
    fair_by: str | None = None  # an argument; workers take turns between its values


class Handler(Struct, frozen=True, kw_only=True):
    """A task type: its name, its function and its options."""

    type: str
    function: Callable[..., Any]
    options: HandlerOptions
    arguments: Any  # Arguments; a Struct field cannot be a protocol
    returns: Any = Any
    time_limit: float | None = None  # seconds for an attempt in this process, instead of the task's timeout

    def decode_result(self, data: bytes) -> Any:
        value = decode_value(data)
        if self.returns is Any or isinstance(value, bytes):
            return value
        try:
            return msgspec.convert(value, self.returns)
        except msgspec.ValidationError as error:
            raise InvalidTask("result", f"does not match the return annotation of {self.type}: {error}") from error


class Registry:
    """The handlers of a program, by type, its schedules, by name, and its hooks."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.schedules: dict[str, Schedule] = {}
        self.hooks = Hooks()

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.type)
        if known is not None and known.function is not handler.function:
            raise InvalidSetting(f"two functions are declared for the type {handler.type!r}; rename one of them")
        self._handlers[handler.type] = handler

    def add_schedule(self, schedule: Schedule) -> None:
        if self.schedules.setdefault(schedule.name, schedule) != schedule:
            raise InvalidSetting(f"two schedules are called {schedule.name!r}; pass name= to one of them")

    def get(self, task_type: str) -> Handler | None:
        return self._handlers.get(task_type)

    def replace(self, handler: Handler) -> None:
        self._handlers[handler.type] = handler

    def remove(self, task_type: str) -> None:
        self._handlers.pop(task_type, None)

    def __iter__(self) -> Iterator[Handler]:
        return iter(list(self._handlers.values()))

    def __len__(self) -> int:
        return len(self._handlers)


def check_function(function: Any) -> None:
    """Raise InvalidSetting for what cannot handle tasks: classes, generators, and objects without a signature."""
    shown = getattr(function, "__name__", None) or f"{function!r:.80}"
    if not callable(function):
        raise InvalidSetting(f"{shown} is not a function, so it cannot handle tasks")
    if inspect.isclass(function):
        raise InvalidSetting(f"{shown} is a class, so it cannot handle tasks; declare a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{shown} is a generator, whose result cannot be stored; return a list instead of `yield`")
    try:
        inspect.signature(function)
    except ValueError as error:
        raise InvalidSetting(f"the arguments of {shown} are not known; call it in a function of your own") from error


def function_name(function: Callable[..., Any]) -> str:
    """The default type of its tasks. Raises InvalidSetting for a `functools.partial`, which has no name."""
    name = getattr(function, "__name__", None)
    if name is None:
        raise InvalidSetting(f"{function!r:.80} has no name; pass name= or declare a function with def")
    return str(name)


def make_options(function: Callable[..., Any], **given: Any) -> HandlerOptions:
    """Validated options. Mistakes are raised at import, where the options are declared."""
    check_function(function)
    if unknown := unknown_options(given, {*HandlerOptions.__struct_fields__, "name"}):
        raise InvalidSetting(f"task {function_name(function)}: {unknown}")
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(given.get("timeout"), timedelta):
        given["timeout"] = given["timeout"].total_seconds()
    given["priority"] = level(given.get("priority", MEDIUM))
    given["needs"] = check_names("needs", given.get("needs", ()))
    check_name("queue", given.get("queue", "default"))
    check_retry(given.get("retry", DEFAULT_POLICY))
    if "unique" in given:
        _check_unique_arguments(function, check_unique(given["unique"]))
    if "limit" in given:
        check_declared(given["limit"])
    _check_group_argument(function, given.get("limit"), given.get("fair_by"))
    is_async = inspect.iscoroutinefunction(function)
    executor = _executor(given.get("executor", Executor.ASYNC if is_async else Executor.THREAD))
    if executor is Executor.THREAD and is_async:
        raise InvalidSetting(f"{function.__name__} is async: run it with executor='async' or 'process'")
    if executor is Executor.ASYNC and not is_async:
        raise InvalidSetting(f"{function.__name__} is not async: run it with executor='thread' or 'process'")
    check_number("timeout", given.get("timeout", TIMEOUT), above=0.0)
    check_number("rate_limit", given.get("rate_limit", 0.0))
    check_whole("max_retries", given.get("max_retries", MAX_RETRIES))
    check_whole("concurrency", given.get("concurrency", 0))
    return HandlerOptions(**given | {"executor": executor})


def _check_unique_arguments(function: Callable[..., Any], unique: Unique) -> None:
    parameters = inspect.signature(function).parameters
    if unique.by == "args" or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in unique.by:
        if name not in parameters:
            raise InvalidSetting(f"unique.by: {name!r:.80} is not an argument of {function.__name__}")


def _check_group_argument(function: Callable[..., Any], limit: Limit | None, fair_by: str | None) -> None:
    key = group_by(limit, fair_by)
    if key is None:
        return
    field = "fair_by" if limit is None or limit.key is None else "limit.key"
    parameters = inspect.signature(function).parameters
    if key not in parameters or parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
        raise InvalidSetting(f"{field}: {key!r:.80} is not an argument of {function.__name__}")
    if parameters[key].default is not inspect.Parameter.empty:
        raise InvalidSetting(f"{field}: {key!r:.80} has a default in {function.__name__}; every task must pass it")


def _executor(name: str) -> Executor:
    try:
        return Executor(name)
    except ValueError:
        raise InvalidSetting(f"executor={name!r:.80} is not one of: {', '.join(Executor)}") from None


def make_handler(function: Callable[..., Any], *, type: str, options: HandlerOptions) -> Handler:
    return Handler(
        type=check_type("type", type),
        function=function,
        options=options,
        arguments=SignatureArguments(function),
        returns=type_hints(function).get("return", Any),
    )
