"""How deep JSON text is nested, found without parsing it: a parser would meet Python's recursion limit."""

import re

from qo.errors import InvalidTask

DEEPEST = 64

# What a decoder raises for bytes that it cannot read. How deep it follows nesting depends on Python's stack.
UNREADABLE = (ValueError, RecursionError)

# Always matches from the first quote on, to the end of the text if nothing closes the string: the search is linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")


def is_too_deep(text: bytes) -> bool:
    """Whether JSON text is nested deeper than DEEPEST levels. For bytes that are no JSON, an estimate."""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    brackets = _STRING.sub(b"", text).translate(_ALIKE, delete=_NOT_BRACKETS)
    depth = 0
    while b"[]" in brackets and depth <= DEEPEST:
        brackets = brackets.replace(b"[]", b"")  # the innermost level of every branch
        depth += 1
    return depth + brackets.count(b"[") > DEEPEST


def check_depth(field: str, data: bytes) -> None:
    """Raises InvalidTask for an encoded payload or result that is nested too deeply. Raw data has no depth."""
    if data[:1] != b"\x00" and is_too_deep(data):
        raise InvalidTask(field, f"is nested deeper than {DEEPEST} levels")
