"""The arguments of handlers: validated and encoded as a payload on submission, decoded before a run."""

import inspect
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol, Union, get_type_hints

import msgspec
from msgspec import Struct

from qo.codec import decode_value, encode_value, is_sealed, sealed_key_id
from qo.errors import EncryptedValue, InvalidSetting, InvalidTask
from qo.model import UNREADABLE

_RAW = b"\x00"  # see codec; a function whose only parameter is annotated as `bytes` gets the raw data
# What the evaluation of an annotation raises, such as a name that is only imported for type checkers.
_UNEVALUABLE = (NameError, TypeError, AttributeError, SyntaxError)


class Arguments(Protocol):
    """Converts between the arguments of a call and a payload."""

    style: ClassVar[str]

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes: ...
    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]: ...


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


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations. Only those that cannot be evaluated at run time count as Any."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except _UNEVALUABLE:
        hints = _evaluable(function)
    return {name: Any if hint is inspect.Parameter.empty else hint for name, hint in hints.items()}


def _evaluable(function: Callable[..., Any]) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    unwrapped = inspect.unwrap(function)
    try:
        annotations = dict(unwrapped.__annotations__)
    except _UNEVALUABLE:  # Python 3.14 evaluates all of them at once
        return hints
    for name, annotation in annotations.items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(alone, getattr(unwrapped, "__globals__", {}), include_extras=True)
        except _UNEVALUABLE:
            hints[name] = Any
    return hints
