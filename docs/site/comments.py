"""An extension of Griffe, which reads the code for the Python API: fields of classes become a table.

The comment behind or above a field is its description. Griffe would show each field under a heading of its own, without
comments.
"""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import griffe

_COMMENT = re.compile(r"  # (?!noqa|type:)(.+)$")
_DATA = ("Struct", "TypedDict", "StrEnum", "TimingOptions", "NamedTuple")  # base classes of data
_MAX_DEFAULT = 40  # characters


class FieldTables(griffe.Extension):
    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if attr.docstring is None and (text := _comment(attr)):
            attr.docstring = griffe.Docstring(text, lineno=attr.lineno, parent=attr)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if not any(str(base).split("[")[0].split(".")[-1] in _DATA for base in cls.bases):
            return
        fields = [each for each in cls.members.values() if _is_field(each)]
        if not fields:
            return
        rows = "\n".join(f"    {field.name}{_type(field)}: {_description(field)}" for field in fields)
        text = cls.docstring.value if cls.docstring is not None else ""
        cls.docstring = griffe.Docstring(f"{text}\n\nAttributes:\n{rows}\n", parent=cls, parser="google")
        for field in fields:
            del cls.members[field.name]


def _is_field(member: Any) -> bool:
    is_attribute = member.is_attribute and not member.is_alias and "property" not in member.labels
    return is_attribute and not member.name.startswith("_")


def _type(field: griffe.Attribute) -> str:
    return f" ({field.annotation})" if field.annotation is not None else ""


def _description(field: griffe.Attribute) -> str:
    text = field.docstring.value.replace("\n", " ") if field.docstring is not None else ""
    default = str(field.value) if field.value is not None else ""
    if default and len(default) <= _MAX_DEFAULT and default not in ("None", "..."):
        text += f" `{default}`" if field.annotation is None else f" Default: `{default}`."
    return text.strip() or "—"


def _comment(attr: griffe.Attribute) -> str:
    """The comment behind the attribute, or above it, as a sentence."""
    if attr.lineno is None or not isinstance(attr.filepath, Path):
        return ""
    lines = attr.filepath.read_text("utf-8").splitlines()
    found = _COMMENT.search(lines[(attr.endlineno or attr.lineno) - 1])
    text = found[1].strip() if found is not None else _comment_above(lines[: attr.lineno - 1])
    return f"{text[0].upper()}{text[1:].rstrip('.')}." if text else ""


def _comment_above(lines: list[str]) -> str:
    comment = list(takewhile(lambda line: line.strip().startswith("# "), reversed(lines)))
    return " ".join(line.strip().removeprefix("# ") for line in reversed(comment))
