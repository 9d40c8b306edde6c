"""Data of a request: the JSON body, query parameters, the trace id. All are validated strictly."""

import inspect
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException, ValidationException
from litestar.handlers import BaseRouteHandler
from litestar.types import AnyCallable

from qo.codec import encode_value, from_json, parse_json
from qo.errors import InvalidTask
from qo.ids import new_token

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<place>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:missing required|contains unknown) field `(.*)`$", re.DOTALL)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NOT_QUERY_PARAMETERS = frozenset({"request", "data", "state", "scope", "headers"})
_UNSUPPORTED = 415


class StrictRequest(Request[Any, Any, Any]):
    """Parses JSON with qo's own parser and converts strictly: "5" is not a number."""

    async def json(self) -> Any:
        if not is_json(self.headers.get("content-type", "")):
            raise HTTPException("send the body as JSON, with Content-Type: application/json", status_code=_UNSUPPORTED)
        expected = self.route_handler.parsed_data_field
        return read_body(await self.body(), Any if expected is None else expected.annotation)


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


def read_body(body: bytes, kind: Any) -> Any:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidTask("body", f"is not UTF-8 text: {error.reason} at byte {error.start}") from error
    return convert(parse_json(text, "body"), kind)


def convert(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidTask(*locate_error(str(error))) from error


def locate_error(message: str) -> tuple[str, str]:
    """The field and the problem in an error message of msgspec."""
    found = _WHERE.match(message)
    place, problem = (found["place"] or "", found["problem"]) if found else ("", message)
    named = _FIELD.search(problem)
    return ".".join(part for part in (place, named[1] if named else "") if part) or "body", problem


def encode_payload(value: Any) -> bytes:
    """A part of the body as a payload. It was validated when parsed; raw bytes arrive as base64 and are not JSON."""
    plain = from_json(value)
    return encode_value(plain) if isinstance(plain, bytes) else msgspec.json.encode(plain)


def rename_field(error: InvalidTask, names: Mapping[str, str], prefix: str = "") -> InvalidTask:
    """The same error with the API's name of the field instead of the model's."""
    name = prefix + names.get(error.field, error.field)
    return InvalidTask(name, str(error).removeprefix(f"{error.field}: "))


def refuse_unknown(given: list[str], handler: BaseRouteHandler) -> None:
    """Raise if a query parameter is unknown: a misspelt filter must not match everything."""
    known = parameters(handler.fn)
    for name in given:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise ValidationException(extra=[{"key": name, "message": f"unknown parameter; known ones: {names}"}])


@cache  # by function, because Litestar copies the handler for each request
def parameters(function: AnyCallable) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters) - _NOT_QUERY_PARAMETERS


def trace_of(request: Request[Any, Any, Any]) -> str:
    """The trace id of the request (W3C `traceparent`), or a new one."""
    found = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return found[1] if found else new_token()
