"""Converts payloads and results, stored tasks, and the JSON views of tasks.

Stored values are JSON text, or raw data after a NUL byte, with which no JSON text starts.
"""

import binascii
import gc
import json
import math
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from qo.clock import iso
from qo.errors import EncryptedValue, InvalidTask
from qo.model import MAX_DEPTH, UNREADABLE, Event, Status, Task, effective_priority, is_too_deep, show, with_kind

_INTEGER_LIMIT = 2**63
_RAW = b"\x00"
_BYTES = (bytes, bytearray, memoryview)
_RAW_KEY = "$base64"  # the key of raw data in JSON
_SEALED_KEY = "$encrypted"  # the key of encrypted data in JSON; its value is the id of the encryption key

# How encrypted values and texts begin (encryption.py). To code that does not know them, the values are raw data.
SEALED = _RAW + b"qo-sealed-1:"
SEALED_TEXT = "encrypted: "
_KEY_ID_SIZE = 4  # bytes after SEALED

_document = msgspec.json.Decoder(Task)
_any = msgspec.json.Decoder()
_unread = msgspec.json.Decoder(msgspec.Raw)
_LARGE = 64 * 1024  # bytes


def encode_value(value: object, field: str = "payload") -> bytes:
    """A payload or result as bytes. Raises InvalidTask for values that JSON cannot represent exactly."""
    if isinstance(value, _BYTES):
        data = _RAW + bytes(value)
        if data.startswith(SEALED):
            problem = (
                f"bytes that begin with {SEALED[1:].decode()} look like an encrypted value; put another byte first"
            )
            raise InvalidTask(field, problem)
        return data
    try:
        plain = msgspec.to_builtins(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidTask(field, f"cannot be written as JSON: {error}") from error
    check_json(plain, field)
    return msgspec.json.encode(plain)


class RawBytes(bytes):
    """A raw payload or result as it was submitted. The type distinguishes it from JSON text."""

    __slots__ = ()


def decode_value(data: bytes) -> Any:
    """As `decode`, for stored bytes. Raises msgspec.DecodeError."""
    if is_sealed(data):
        raise EncryptedValue(sealed_key_id(data))
    if type(data) is RawBytes:
        return bytes(data)
    if data[:1] == _RAW:
        return data[1:]
    try:
        return _any.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode(data: bytes) -> Any:
    """The payload or result of a task as a value: raw data as bytes, JSON text as its value.

    Raises InvalidTask for bytes that are neither, and EncryptedValue for a value that needs another key.
    """
    try:
        return decode_value(data)
    except msgspec.DecodeError as error:
        raise InvalidTask("payload", f"is neither JSON nor raw data of a task: {error}") from error


def is_sealed(data: bytes) -> bool:
    """Whether a payload or result is encrypted, with or without the byte that marks raw data."""
    return data.startswith(SEALED) or (type(data) is RawBytes and data.startswith(SEALED[1:]))


def sealed_key_id(data: bytes) -> str:
    """The id of the key of an encrypted value."""
    start = data.index(b":") + 1
    return data[start : start + _KEY_ID_SIZE].hex()


def shown_text(text: str) -> str:
    """An error or a log for people: of an encrypted one the id of its key."""
    if not text.startswith(SEALED_TEXT):
        return text
    try:
        sealed = urlsafe_b64decode(text.removeprefix(SEALED_TEXT))
    except (ValueError, binascii.Error):
        return text
    return f"encrypted with key {sealed_key_id(sealed)}" if sealed.startswith(SEALED) else text


def _shown(text: str | None) -> str | None:
    return None if text is None else shown_text(text)


def plain_task(task: Task) -> Task:
    """A stored task for callers: raw data without the byte that marks it in the store."""
    payload, result = task.payload, task.result
    if payload[:1] != _RAW and (result is None or result[:1] != _RAW):
        return task
    return msgspec.structs.replace(task, payload=_plain(payload), result=None if result is None else _plain(result))


def _plain(data: bytes) -> bytes:
    return RawBytes(data[1:]) if data[:1] == _RAW and type(data) is not RawBytes else data


def parse_json(text: str | bytes, field: str = "payload") -> Any:
    """Parse JSON text from callers strictly: no NaN, no duplicate keys, no text or number that a store would change."""

    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = _strict.decode(text) if len(text) < _LARGE else _decode_large(text)
    except _NotStrictError as error:
        raise InvalidTask(field, str(error)) from None
    except RecursionError as error:
        raise InvalidTask(field, f"is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # also for text that is not UTF-8, and for very long integers
        raise InvalidTask(field, f"is not JSON: {error}") from error
    check_json(value, field)
    return value


class _NotStrictError(ValueError):
    """What Python's parser accepts and qo does not."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotStrictError(f"{name} is not JSON; send null or a string")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise _NotStrictError(f"the key {show(twice)} appears twice")
    return document


# Created once: `json.loads` with options creates a decoder for each call, which takes longer than a small text.
_strict = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_distinct)


def _decode_large(text: str) -> Any:
    """Pause the garbage collector while a large text is parsed: it would visit all new objects several times.

    That took 80 % of the time, during which the event loop of a server is blocked.
    """
    if not gc.isenabled():
        return _strict.decode(text)
    gc.disable()
    try:
        return _strict.decode(text)
    finally:
        gc.enable()


def check_json(value: object, field: str, depth: int = 0) -> None:
    kind = type(value)
    if kind is str:
        _check_text(value, field)  # type: ignore[arg-type]
    elif kind is dict:
        _check_depth(depth, field)
        _check_object(value, field, depth)  # type: ignore[arg-type]
    elif kind is list or kind is tuple:
        _check_depth(depth, field)
        for item in value:  # type: ignore[attr-defined]
            check_json(item, field, depth + 1)
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise InvalidTask(field, f"{value} is not JSON; send null or a string")
    elif kind is int and not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:  # type: ignore[operator]
        raise InvalidTask(field, "an integer is outside ±2^63; send it as a string")


def _check_object(value: dict[Any, Any], field: str, depth: int) -> None:
    """Check the common case, plain ASCII text, inline: a call for each key and value would dominate the cost."""
    for key, item in value.items():
        if type(key) is not str:
            raise InvalidTask(field, f"the key {show(key)} is not a string")
        if not key.isascii() or "\x00" in key:
            _check_text(key, field)
        if type(item) is not str or not item.isascii() or "\x00" in item:
            check_json(item, field, depth + 1)


def _check_depth(depth: int, field: str) -> None:
    if depth >= MAX_DEPTH:
        raise InvalidTask(field, f"is nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str, field: str) -> None:
    if "\x00" in text:
        raise InvalidTask(field, "text with a NUL character cannot be stored; send bytes, or remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidTask(field, "text with a lone surrogate is not Unicode; send bytes") from error


def same_value(one: bytes, other: bytes) -> bool:
    """Whether two stored values are equal. The order of keys in a JSON object is ignored."""
    return one == other or _canonical(one) == _canonical(other)


def _canonical(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(_any.decode(data), order="deterministic")
    except UNREADABLE:  # raw data
        return data


def to_json(data: bytes) -> Any:
    """A payload or result as a JSON value."""
    if is_sealed(data):
        return {_SEALED_KEY: sealed_key_id(data)}
    if type(data) is RawBytes:
        return {_RAW_KEY: b64encode(data).decode()}
    if data[:1] == _RAW:
        return {_RAW_KEY: b64encode(data[1:]).decode()}
    try:
        if not is_too_deep(data):  # a value that can be decoded may still be too deep to encode again
            return _any.decode(data)
    except UNREADABLE:  # written by another program; it must not break a whole listing
        pass
    return {_RAW_KEY: b64encode(data).decode()}


def json_text(data: bytes) -> Any:
    """As `to_json`, for encoding with msgspec. A large value is not decoded, which could take 25 times its size."""
    if len(data) <= _LARGE or type(data) is RawBytes or data[:1] == _RAW or is_too_deep(data):
        return to_json(data)
    try:
        data.decode()  # msgspec does not validate strings that it skips
        return _unread.decode(data)
    except UNREADABLE:
        return to_json(data)


def from_json(value: Any, field: str = "payload") -> Any:
    """The inverse of `to_json`: raw data is {"$base64": "..."}. An encrypted value cannot be submitted again."""
    if isinstance(value, dict) and value.keys() == {_SEALED_KEY}:
        raise InvalidTask(field, f"is encrypted with key {value[_SEALED_KEY]!r:.20}; read it with that key first")
    if isinstance(value, dict) and value.keys() == {_RAW_KEY}:
        try:
            return b64decode(value[_RAW_KEY], validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise InvalidTask(field, f"{_RAW_KEY} is not base64 text") from error
    return value


def encode_task(task: Task) -> bytes:
    """A task with all its fields, for engines that store documents."""
    return msgspec.json.encode(task)


def decode_task(data: bytes) -> Task:
    return with_kind(_document.decode(data))


def task_view(task: Task, now: float, *, show: Callable[[bytes], Any] = to_json) -> dict[str, Any]:
    """A task as JSON: times in ISO 8601, without the lease id. `show` converts payloads and results."""
    waits = task.status is Status.PENDING or task.is_claimed_only
    waited_until = now if waits else task.started_at or task.due_at
    return {
        "id": task.id,
        "queue": task.queue,
        "type": task.type,
        "status": task.status.value,
        "payload": show(task.payload),
        "result": None if task.result is None else show(task.result),
        "error": _shown(task.error),
        "failure_kind": None if task.failure_kind is None else task.failure_kind.value,
        "archived_from": None if task.archived_from is None else task.archived_from.value,
        "priority": task.priority,
        "effective_priority": effective_priority(task.priority, task.due_at, task.rank, waited_until),
        "needs": list(task.needs),
        "group": task.group,
        "timeout": task.timeout,
        "max_retries": task.max_retries,
        "retry": msgspec.to_builtins(task.retry),
        "attempt": task.attempt,
        "failures": task.failures,
        "available_at": iso(task.available_at),
        "lease_expires_at": iso(task.lease_expires_at),
        "worker_id": task.worker_id,
        "created_at": iso(task.created_at),
        "updated_at": iso(task.updated_at),
        "started_at": iso(task.started_at),
        "completed_at": iso(task.completed_at),
        "idempotency_key": task.idempotency_key,
        "trace_id": task.trace_id,
        "run_at": iso(task.run_at),
        "batch": task.batch,
        "progress": task.progress,
        "progress_text": task.progress_text,
        "version": task.version,
    }


def event_view(event: Event) -> dict[str, Any]:
    return {
        "version": event.version,
        "at": iso(event.at),
        "status": event.status.value,
        "attempt": event.attempt,
        "failures": event.failures,
        "worker_id": event.worker_id,
        "error": _shown(event.error),
        "available_at": iso(event.available_at),
        "log": _shown(event.log),
    }
