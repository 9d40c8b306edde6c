"""Tasks as people and files describe them, checked field by field."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qo.client import Settings, describe
from qo.codec import encode_value, from_json, parse_json
from qo.errors import InvalidTask
from qo.model import NewTask, RetryPolicy

NOTHING = "{}"  # what a function without arguments takes
WHEN = frozenset({"available_at", "run_at", "delay"})  # three ways to say it, of which a task takes one
FIELDS = WHEN | {
    "type", "payload", "queue", "priority", "needs", "timeout", "max_retries", "retry", "idempotency_key", "trace_id",
    "id",
}  # fmt: skip
_SPACE = " \t\n\r"
_values = json.JSONDecoder()


def read_input(given: str) -> str:
    """The text `--input` names: itself, @file, or - for stdin."""
    if given == "-":
        return _text(sys.stdin.buffer.read, "stdin")
    if given.startswith("@"):
        return _text(lambda: Path(given[1:]).read_bytes(), given[1:])
    return given


def _text(read: Callable[[], bytes], source: str) -> str:
    try:
        return read().decode("utf-8-sig")
    except OSError as error:
        raise InvalidTask("payload", f"cannot read {source}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidTask("payload", f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def encode_payload(text: str) -> bytes:
    return encode_value(from_json(parse_json(text)))


def task_of_line(line: bytes, settings: Settings) -> NewTask:
    """One line of a file as a task. An error names the field that is wrong."""
    given = _object(_decode(line))
    unknown = given.keys() - FIELDS
    if unknown:
        name = min(unknown)
        raise InvalidTask(name, f"is not a field of a task; the fields are {', '.join(sorted(FIELDS))}")
    if "type" not in given:
        raise InvalidTask("type", "is missing: which handler should run this?")
    payload = encode_value(from_json(given.pop("payload", {})))
    return describe(settings, given.pop("type"), payload, **_options(given))


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTask("line", f"is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text, "line")
    except InvalidTask:
        blame(text)  # raises with the field's name if the fault is inside one
        raise
    if not isinstance(value, dict):
        raise InvalidTask("line", 'is not a JSON object such as {"type": "send_email", "payload": {}}')
    return value


def _options(given: dict[str, Any]) -> dict[str, Any]:
    needs = given.get("needs", [])
    if not isinstance(needs, list):
        raise InvalidTask("needs", "is not a list of names")
    moments = given.keys() & WHEN
    if len(moments) > 1:
        raise InvalidTask(max(moments), f"only one of {', '.join(sorted(moments))} can say when the task runs")
    if "available_at" in given:
        given["run_at"] = given.pop("available_at")
    if "retry" in given:
        given["retry"] = _policy(given["retry"])
    return {name: value for name, value in given.items() if value is not None}


def _policy(given: Any) -> RetryPolicy:
    known = RetryPolicy.__struct_fields__
    if not isinstance(given, dict) or given.keys() - set(known):
        raise InvalidTask("retry", f"is not an object of {', '.join(known)}")
    try:
        return msgspec.convert(given, RetryPolicy)
    except msgspec.ValidationError as error:
        raise InvalidTask("retry", str(error)) from error


def blame(text: str) -> None:
    """Raise for the first field of an object that cannot be read, naming it. Only called once something is wrong."""
    place = _skip(text, 0)
    if text[place : place + 1] != "{":
        return
    place = _skip(text, place + 1)
    while text[place : place + 1] == '"':
        try:
            key, place = _values.raw_decode(text, place)
        except ValueError:
            return
        place = _skip(text, place)
        if text[place : place + 1] != ":":
            return
        place = _member(text, _skip(text, place + 1), key)
        place = _skip(text, _skip(text, place) + 1)  # over the comma


def _member(text: str, place: int, key: str) -> int:
    try:
        _, end = _values.raw_decode(text, place)
    except (ValueError, RecursionError):
        parse_json(text[place:], key)
        raise
    parse_json(text[place:end], key)
    return end


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in _SPACE:
        place += 1
    return place
