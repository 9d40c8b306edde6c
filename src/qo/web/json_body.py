"""Request bodies, read as strictly as everything else that comes from outside."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException

from qo.codec import encode_value, from_json, parse_json
from qo.errors import InvalidTask

_WHERE = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.?(?P<place>.*)`)?$", re.DOTALL)
_FIELD = re.compile(r"(?:missing required|contains unknown) field `(.*)`$", re.DOTALL)
_UNSUPPORTED = 415


class StrictRequest(Request[Any, Any, Any]):
    """Its JSON is read by our own reader, and converted without guessing: "5" is no number here."""

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
        raise InvalidTask(*blame(str(error))) from error


def blame(message: str) -> tuple[str, str]:
    """Where in the body something is wrong, and what, out of msgspec's sentence."""
    found = _WHERE.match(message)
    place, problem = (found["place"] or "", found["problem"]) if found else ("", message)
    named = _FIELD.search(problem)
    return ".".join(part for part in (place, named[1] if named else "") if part) or "body", problem


def encode_read(value: Any) -> bytes:
    """Part of a body as a payload. It was checked as it was read; only raw data, written as base64, is not JSON."""
    plain = from_json(value)
    return encode_value(plain) if isinstance(plain, bytes) else msgspec.json.encode(plain)


def as_called_here(error: InvalidTask, names: Mapping[str, str], prefix: str = "") -> InvalidTask:
    """The same error, with the model's name of the field as this dialect calls it."""
    name = prefix + names.get(error.field, error.field)
    return InvalidTask(name, str(error).removeprefix(f"{error.field}: "))
