"""Fields that this build does not know: a newer one wrote them, and a rewrite of the document keeps them.

Documents are decoded into structs, which drop what they do not know. `unknown_fields` finds it in the bytes, and
`put_back` adds it to what was encoded again. Nearly all documents have none, so finding nothing must be cheap.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from qo.model import is_too_deep

Unknown = dict[str, Any]  # by name: a value, or what is unknown inside a field that is known

_any = msgspec.json.Decoder()
_VERSION = "version"  # what tells the events of a task apart


class Shape:
    """What structs know of a document: the names of its fields, and the same of some fields that are objects."""

    def __init__(self, kind: type[Struct], *, but: tuple[str, ...] = (), **inside: "Shape") -> None:
        """`but`: fields of the struct that are not part of the document. `events` is a list of objects or arrays."""
        self.names = frozenset(kind.__struct_fields__) - frozenset(but)
        self.inside = inside
        self.size = len(kind.__struct_fields__)  # of an array


def unknown_fields(data: bytes, shape: Shape) -> Unknown:
    """What a document has and the structs do not know; empty for nearly all documents.

    Raises ValueError for fields that are nested too deeply to be written again.
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
    """By the version that an event names; of an array, what stands behind the elements that are known."""
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
    """An encoded document with these fields, too."""
    return msgspec.json.encode(_put_back(_any.decode(data), unknown, shape)) if unknown else data


def _put_back(document: dict[str, Any], unknown: Unknown, shape: Shape) -> dict[str, Any]:
    merged = document | {name: value for name, value in unknown.items() if name not in shape.inside}
    for name, inner in shape.inside.items():
        if name not in unknown:
            continue
        value = document.get(name, {})  # a field that is known is left out if it has its default
        merged[name] = (
            _with_events(value, unknown[name]) if isinstance(value, list) else _put_back(value, unknown[name], inner)
        )
    return merged


def _with_events(events: list[Any], unknown: Mapping[int, Any]) -> list[Any]:
    return [
        event | unknown.get(event[_VERSION], {}) if isinstance(event, dict) else [*event, *unknown.get(event[0], [])]
        for event in events
    ]
