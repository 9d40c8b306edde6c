"""Fields that this build does not know. A newer build wrote them, and rewriting the document preserves them.

Documents are decoded into structs, which drop unknown fields. `unknown_fields` finds them in the bytes, and `put_back`
adds them to the document when it is encoded again. Nearly all documents have none, so that case must be cheap.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from qo.model import is_too_deep

Unknown = dict[str, Any]  # by name: a value, or the unknown fields inside a known field

_any = msgspec.json.Decoder()
_VERSION = "version"  # identifies an event of a task


class Shape:
    """The field names of a struct, and the shapes of those fields that are objects themselves."""

    def __init__(self, kind: type[Struct], *, but: tuple[str, ...] = (), **inside: "Shape") -> None:
        """`but`: fields of the struct that are not part of the document. `events` is a list of objects or arrays."""
        self.names = frozenset(kind.__struct_encode_fields__) - frozenset(but)
        self.inside = inside
        self.size = len(kind.__struct_fields__)  # of an event stored as an array


def unknown_fields(data: bytes, shape: Shape) -> Unknown:
    """The fields of a document that its struct does not know. Nearly always empty.

    Raises ValueError if they are nested too deeply to be encoded again.
    """
    unknown = _unknown(_any.decode(data), shape)
    if unknown and is_too_deep(data):
        raise ValueError("its unknown fields are nested too deeply")
    return unknown


def _unknown(document: dict[str, Any], shape: Shape) -> Unknown:
    unknown: Unknown = {name: document[name] for name in document.keys() - shape.names}
    for name, inner in shape.inside.items():
        value = document.get(name)
        deeper: Any = _of_events(value, inner) if isinstance(value, list) else _unknown(value or {}, inner)
        if deeper:
            unknown[name] = deeper
    return unknown


def _of_events(events: list[Any], shape: Shape) -> dict[int, Any]:
    """Unknown fields by the version of the event. Of an array, the elements after the known ones."""
    unknown: dict[int, Any] = {}
    for event in events:
        if isinstance(event, dict):
            more: Any = _unknown(event, shape)
            version = event[_VERSION]
        else:
            more, version = event[shape.size :], event[0]
        if more:
            unknown[version] = more
    return unknown


def put_back(data: bytes, unknown: Unknown, shape: Shape) -> bytes:
    """The encoded document with the unknown fields added."""
    return msgspec.json.encode(_put_back(_any.decode(data), unknown, shape)) if unknown else data


def _put_back(document: dict[str, Any], unknown: Unknown, shape: Shape) -> dict[str, Any]:
    merged = document | {name: value for name, value in unknown.items() if name not in shape.inside}
    for name, inner in shape.inside.items():
        if name not in unknown:
            continue
        value = document.get(name, {})  # an omitted known field has its default value
        merged[name] = (
            _with_events(value, unknown[name]) if isinstance(value, list) else _put_back(value, unknown[name], inner)
        )
    return merged


def _with_events(events: list[Any], unknown: Mapping[int, Any]) -> list[Any]:
    return [
        event | unknown.get(event[_VERSION], {}) if isinstance(event, dict) else [*event, *unknown.get(event[0], [])]
        for event in events
    ]
