"""Handlers: the functions of task types, their options, and the encoding of their arguments."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, Union

import msgspec
from msgspec import Struct

from qo.codec import decode_value, encode_value, is_sealed, sealed_key_id
from qo.errors import EncryptedValue, InvalidSetting, InvalidTask
from qo.handler_functions import check_function, function_name, type_hints
from qo.hooks import Hooks
from qo.model import (
    DEFAULT_POLICY,
    MAX_RETRIES,
    MEDIUM,
    TIMEOUT,
    UNREADABLE,
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

_RAW = b"\x00"  # see codec; a function whose only parameter is annotated as `bytes` gets the raw data


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


class Arguments(Protocol):
    """Converts between the arguments of a call and a payload."""

    style: ClassVar[str]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes: ...
    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


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


class SignatureArguments:
    """Arguments as a JSON object by parameter name, validated on submission and before a run."""

    style: ClassVar = "signature"

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = getattr(function, "__name__", repr(function))
        self._signature = inspect.signature(function)
        hints = type_hints(function)
        fields: list[tuple[str, Any, bool]] = []  # name, type, and whether there is a default
        self._open = False  # the function has **kwargs
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise InvalidSetting(
                    f"{self._name}: arguments are stored by name, so *args and positional-only ones are not supported"
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                self._open = True
                continue
            has_default = parameter.default is not parameter.empty
            fields.append((parameter.name, hints.get(parameter.name, Any), has_default))
        names = list(self._signature.parameters)
        is_by_position = all(each.kind is each.POSITIONAL_OR_KEYWORD for each in self._signature.parameters.values())
        self._names = names if is_by_position else None  # for calls that pass all arguments, see `_bind`
        self._takes_raw = names[0] if len(names) == 1 and hints.get(names[0]) is bytes else None
        self._types = {name: kind for name, kind, _ in fields}
        self._struct = self._build(fields)
        self._decoder = msgspec.json.Decoder(self._struct)

    def _build(self, fields: list[tuple[str, Any, bool]]) -> type[Struct]:
        try:
            members = [
                (name, Union[kind, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007 - not every annotation supports |
                if has_default
                else (name, kind)
                for name, kind, has_default in fields
            ]
            struct = msgspec.defstruct(self._name, members, kw_only=True, forbid_unknown_fields=not self._open)
            msgspec.json.Decoder(struct)  # raises for unsupported annotations
        except TypeError as error:
            raise InvalidSetting(f"{self._name}: an argument of this type cannot be stored as JSON: {error}") from error
        return struct

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        payload = encode_value(self._bind(args, kwargs))
        self._check(payload)
        return payload

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        names = self._names
        if names is not None and len(args) + len(kwargs) == len(names):  # usual, and `bind` takes several µs
            if not kwargs:
                return dict(zip(names, args, strict=True))
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            if [*named] == names:
                return named
        try:
            return self._by_name(self._signature.bind(*args, **kwargs))
        except TypeError as error:
            raise InvalidTask("payload", f"{self._name}() {error}") from error

    def _by_name(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name, {})
        return named

    def bind_some(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name. Some may be missing."""
        try:
            return self._by_name(self._signature.bind_partial(*args, **kwargs))
        except TypeError as error:
            raise InvalidTask("payload", f"{self._name}() {error}") from error

    def check_given(self, named: Mapping[str, Any]) -> None:
        """Validate each of these arguments alone. Raises InvalidTask."""
        for name, value in named.items():
            data = encode_value(value)
            try:
                msgspec.json.decode(data, type=self._types.get(name, Any))
            except UNREADABLE as error:
                raise InvalidTask("payload", f"{self._name}() does not accept {name}: {error}") from error

    def first_missing(self, named: Mapping[str, Any]) -> str | None:
        """The first argument that has no default and is not in `named`."""
        empty, several = inspect.Parameter.empty, inspect.Parameter.VAR_KEYWORD
        for parameter in self._signature.parameters.values():
            if parameter.default is empty and parameter.kind is not several and parameter.name not in named:
                return parameter.name
        return None

    def encode_given(self, named: Mapping[str, Any], unknown: Collection[str]) -> bytes:
        """The payload of a call in which the values of some arguments are not known yet."""
        self.check_given({name: value for name, value in named.items() if name not in unknown})
        return encode_value(named)

    def _check(self, payload: bytes) -> Any:
        """The payload of a call as a struct. Raises InvalidTask if the function does not accept it."""
        try:
            return self._decoder.decode(payload)
        except UNREADABLE as error:
            raise InvalidTask("payload", f"{self._name}() does not accept it: {error}") from error

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if payload[:1] == _RAW:
            if is_sealed(payload):
                raise EncryptedValue(sealed_key_id(payload))
            if self._takes_raw is not None:
                return (), {self._takes_raw: decode_value(payload)}
            raise InvalidTask(
                "payload",
                f"{self._name}() accepts a JSON object of its arguments, not raw bytes; "
                "only a function with a single parameter annotated as bytes accepts those",
            )
        known = self._check(payload)
        names = self._struct.__struct_fields__
        given = {name: value for name in names if (value := getattr(known, name)) is not msgspec.UNSET}
        if self._open:
            given = {name: value for name, value in decode_value(payload).items() if name not in names} | given
        return (), given


class PayloadArguments:
    """The whole payload as the single argument of the function."""

    style: ClassVar = "payload"

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = list(inspect.signature(function).parameters)
        if not parameters:
            raise InvalidSetting(f"{function!r} must take the payload as its first argument")
        self._kind = type_hints(function).get(parameters[0], Any)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        (value,) = (*args, *kwargs.values())
        payload = encode_value(value)
        self.decode(payload)
        return payload

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (decode_payload(payload, self._kind),), {}


def decode_payload(payload: bytes, kind: Any) -> Any:
    """A payload converted to a type; raw bytes are returned unchanged."""
    try:
        value = decode_value(payload)
        return value if isinstance(value, bytes) else msgspec.convert(value, kind)
    except msgspec.DecodeError as error:
        raise InvalidTask("payload", f"does not match the annotation of the handler: {error}") from error


STYLES: dict[str, Callable[[Callable[..., Any]], Arguments]] = {
    kind.style: kind for kind in (SignatureArguments, PayloadArguments)
}
