"""Tasks from JSON lines and payloads from options, checked field by field."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from qo.client import Settings, describe
from qo.clock import iso
from qo.codec import encode_value, from_json, parse_json, to_json
from qo.errors import InvalidTask
from qo.model import NewTask, RetryPolicy, Status, Task, Unique

NO_ARGUMENTS = "{}"
_TIME_FIELDS = frozenset({"available_at", "run_at", "delay"})  # a task may have one of them
_FIELDS = _TIME_FIELDS | {
    "type", "payload", "queue", "priority", "needs", "timeout", "max_retries", "retry", "idempotency_key", "trace_id",
    "id", "batch", "unique", "fair_by",
}  # fmt: skip
_OTHER_FORMAT = "is not one task as a JSON object; `qo list --json-lines` writes one per line, `--json` does not"
_WHITESPACE = " \t\n\r"
_decoder = json.JSONDecoder()


def read_input(given: str) -> str:
    """The text that `--input` refers to: the value itself, @file, or - for stdin."""
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


def parse_task(line: bytes, settings: Settings) -> NewTask:
    """One line of a file as a task. Raises InvalidTask with the name of the invalid field."""
    given = _object(_decode(line))
    unknown = given.keys() - _FIELDS
    if "tasks" in unknown:
        raise InvalidTask("line", _OTHER_FORMAT)
    if unknown:
        name = min(unknown)
        raise InvalidTask(name, f"is not a field of a task; the fields are {', '.join(sorted(_FIELDS))}")
    if "type" not in given:
        raise InvalidTask("type", "is missing; it selects the handler")
    payload = encode_value(from_json(given.pop("payload", {})))
    return describe(settings, given.pop("type"), payload, **_options(given))


def line_of(task: Task, now: float) -> dict[str, Any]:
    """A stored task as `parse_task` reads it. A pending task that is due later keeps its time."""
    waits = task.status is Status.PENDING and task.available_at > now
    return {
        "id": task.id,
        "type": task.type,
        "payload": to_json(task.payload),
        "queue": task.queue,
        "priority": task.priority,
        "needs": list(task.needs),
        "timeout": task.timeout,
        "max_retries": task.max_retries,
        "retry": msgspec.to_builtins(task.retry),
        "run_at": iso(task.available_at if waits else task.run_at),
        "idempotency_key": task.idempotency_key,
        "trace_id": task.trace_id,
        "batch": task.batch,
        "fair_by": None if task.group is None else task.group.partition("=")[0],
    }


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidTask("line", f"is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _object(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text, "line")
    except InvalidTask:
        if text.strip() in {"{", "["}:
            raise InvalidTask("line", _OTHER_FORMAT) from None
        _raise_for_field(text)  # names the field if the error is inside one
        raise
    if not isinstance(value, dict):
        raise InvalidTask("line", 'is not a JSON object such as {"type": "send_email", "payload": {}}')
    return value


def _options(given: dict[str, Any]) -> dict[str, Any]:
    needs = given.get("needs", [])
    if not isinstance(needs, list):
        raise InvalidTask("needs", "is not a list of names")
    times = given.keys() & _TIME_FIELDS
    if len(times) > 1:
        raise InvalidTask(max(times), f"only one of {', '.join(sorted(times))} can set the time of the task")
    if "available_at" in given:
        given["run_at"] = given.pop("available_at")
    if "retry" in given:
        given["retry"] = _policy(given["retry"])
    if given.get("unique") is not None:
        given["unique"] = _unique(given["unique"])
    return {name: value for name, value in given.items() if value is not None}


def _policy(given: Any) -> RetryPolicy:
    known = RetryPolicy.__struct_fields__
    if not isinstance(given, dict) or given.keys() - set(known):
        raise InvalidTask("retry", f"is not an object of {', '.join(known)}")
    try:
        return msgspec.convert(given, RetryPolicy)
    except msgspec.ValidationError as error:
        raise InvalidTask("retry", str(error)) from error


def _unique(given: Any) -> Unique:
    known = Unique.__struct_fields__
    if not isinstance(given, dict) or given.keys() - set(known):
        raise InvalidTask("unique", f"is not an object of {', '.join(known)}")
    by = given.get("by", "args")
    return Unique(**given | {"by": tuple(by) if isinstance(by, list) else by})  # `describe` checks the values


def _raise_for_field(text: str) -> None:
    """Raise InvalidTask for the first field of an object that cannot be parsed. Called only for invalid JSON."""
    position = _skip(text, 0)
    if text[position : position + 1] != "{":
        return
    position = _skip(text, position + 1)
    while text[position : position + 1] == '"':
        try:
            key, position = _decoder.raw_decode(text, position)
        except ValueError:
            return
        position = _skip(text, position)
        if text[position : position + 1] != ":":
            return
        position = _member(text, _skip(text, position + 1), key)
        position = _skip(text, _skip(text, position) + 1)  # the comma


def _member(text: str, position: int, key: str) -> int:
    try:
        _, end = _decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        parse_json(text[position:], key)
        raise
    parse_json(text[position:end], key)
    return end


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position
