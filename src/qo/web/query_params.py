"""Query parameters: a misspelt filter must not quietly mean everything."""

import inspect
from functools import cache

from litestar.exceptions import ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.types import AnyCallable

_NOT_FROM_THE_QUERY = frozenset({"request", "data", "state", "scope", "headers"})


def refuse_unknown(given: list[str], handler: BaseRouteHandler) -> None:
    known = parameters(handler.fn)
    for name in given:
        if name not in known:
            there_are = ", ".join(sorted(known)) or "none"
            raise ValidationException(extra=[{"key": name, "message": f"no such parameter; there is {there_are}"}])


@cache  # by function: Litestar hands out a copy of the handler with each request
def parameters(function: AnyCallable) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - _NOT_FROM_THE_QUERY
