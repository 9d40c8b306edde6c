"""Which functions can handle tasks, and the types of their arguments."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from qo.errors import InvalidSetting

# What the evaluation of an annotation raises, such as a name that is only imported for type checkers.
_UNEVALUABLE = (NameError, TypeError, AttributeError, SyntaxError)


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
