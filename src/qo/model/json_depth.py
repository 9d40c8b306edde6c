"""The nesting depth of JSON text, without parsing it: a parser would reach Python's recursion limit."""

import re

from qo.errors import InvalidTask

MAX_DEPTH = 64

# The errors of a decoder for unreadable bytes. The depth at which it fails depends on Python's stack.
UNREADABLE = (ValueError, RecursionError)

# Matches from the first quote on, to the end of the text if the string is not closed, so the search is linear.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_BRACES_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")


def is_too_deep(text: bytes) -> bool:
    """Whether JSON text is nested deeper than MAX_DEPTH levels. For bytes that are not JSON, an estimate."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _STRING.sub(b"", text).translate(_BRACES_TO_BRACKETS, delete=_NOT_BRACKETS)
    depth = 0
    while b"[]" in brackets and depth <= MAX_DEPTH:
        brackets = brackets.replace(b"[]", b"")  # the innermost level of every branch
        depth += 1
    return depth + brackets.count(b"[") > MAX_DEPTH


def check_depth(field: str, data: bytes) -> None:
    """Raises InvalidTask for an encoded payload or result that is nested too deeply. Raw data has no depth."""
    if data[:1] != b"\x00" and is_too_deep(data):
        raise InvalidTask(field, f"is nested deeper than {MAX_DEPTH} levels")
