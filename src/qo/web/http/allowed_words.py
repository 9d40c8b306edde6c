"""The words that a field or parameter accepts. The parser's own message about a wrong word does not name them."""

import re
from functools import lru_cache
from typing import Any

import msgspec.inspect
from msgspec.inspect import CollectionType, DictType, EnumType, LiteralType, Metadata, StructType, Type, UnionType

_WRONG_WORD = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)
_STEP = re.compile(r"\[[^]]*\]|[^.\[\]]+")


def name_words(problem: str, kind: Any, place: str) -> str:
    """The problem, with all accepted words if it is a wrong word at `place` of `kind`, such as `tasks[0].priority`."""
    found = _WRONG_WORD.fullmatch(problem)
    words = _words(kind, place) if found else ()
    return f"{found['value']} is not one of: {', '.join(words)}" if found and words else problem


@lru_cache(maxsize=256)
def _words(kind: Any, place: str) -> tuple[str, ...]:
    types = _options_of(msgspec.inspect.type_info(kind))
    for step in _STEP.findall(place):
        types = [option for each in types for inner in _inside(each, step) for option in _options_of(inner)]
    return tuple(dict.fromkeys(str(word) for each in types for word in _own_words(each)))


def _options_of(kind: Type) -> list[Type]:
    if isinstance(kind, Metadata):
        return _options_of(kind.type)
    if isinstance(kind, UnionType):
        return [option for each in kind.types for option in _options_of(each)]
    return [kind]


def _inside(kind: Type, step: str) -> list[Type]:
    """The types of what is below one step of a place."""
    if isinstance(kind, StructType):
        return [field.type for field in kind.fields if field.encode_name == step]
    if isinstance(kind, CollectionType) and step.startswith("["):
        return [kind.item_type]
    return [kind.value_type] if isinstance(kind, DictType) and step.startswith("[") else []


def _own_words(kind: Type) -> list[Any]:
    if isinstance(kind, LiteralType):
        return list(kind.values)
    if isinstance(kind, EnumType):
        return [member.value for member in kind.cls]
    if isinstance(kind, CollectionType):  # an element of a query parameter has the place of its list
        return [word for each in _options_of(kind.item_type) for word in _own_words(each)] or ["a list"]
    return []
