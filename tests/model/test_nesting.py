"""How deep JSON text is nested, without parsing it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.errors import InvalidTask
from qo.model import MAX_DEPTH, check_depth, check_payload, is_too_deep


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_DEPTH),
        b"[" + b",".join([nested(MAX_DEPTH - 1)] * 500) + b"]",
        b'{"a":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH,
        b'["' + b"[{" * 5_000 + b'"]',
        b'["\\"' + b"[" * 5_000 + b'"]',
        b'{"' + b"\\\\" * 99 + b'":"' + b"{" * 99 + b'"}',
        b"]" * 5_000,
        b"",
    ],
)
def test_text_that_is_not_too_deep(text: bytes) -> None:
    assert not is_too_deep(text)
    check_depth("payload", text)


@pytest.mark.parametrize(
    "text",
    [
        nested(MAX_DEPTH + 1),
        nested(5_000),
        b'{"a":[' * 33 + b"1" + b"]}" * 33,
        b'{"a":"\\\\","b":' * 65 + b"1" + b"}" * 65,
        b"[" * 5_000,
        b"[" + nested(3) * 99 + nested(MAX_DEPTH) + b"]",
    ],
)
def test_text_that_is_too_deep(text: bytes) -> None:
    assert is_too_deep(text)
    with pytest.raises(InvalidTask, match=r"^result: is nested deeper than 64 levels"):
        check_depth("result", text)


def test_a_payload_is_as_deep_and_as_large_as_allowed() -> None:
    deepest = nested(MAX_DEPTH)
    check_payload(deepest, len(deepest))
    with pytest.raises(InvalidTask, match=r"^payload: is 128 bytes, the limit is 127;"):
        check_payload(deepest, len(deepest) - 1)
    with pytest.raises(InvalidTask, match=r"^payload: is nested deeper than 64 levels"):
        check_payload(nested(MAX_DEPTH + 1), 1_000)


def test_raw_data_has_no_depth() -> None:
    check_depth("payload", b"\x00" + nested(5_000))


@pytest.mark.parametrize("ending", [b"", b"\\"])
def test_strings_that_nothing_closes_are_passed_over_once(ending: bytes) -> None:
    """If each quote were tried again, 300,000 of them would take hours."""
    assert not is_too_deep(b'"' + b'\\"[' * 300_000 + ending)


values: Any = st.recursive(
    st.text(st.sampled_from('[]{}"\\a'), max_size=6) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[{"\\'), max_size=3), inner),
    max_leaves=8,
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(MAX_DEPTH - 4, MAX_DEPTH))
def test_brackets_in_text_do_not_count_and_all_others_do(value: Any, around: int) -> None:
    text = b"[" * around + json.dumps(value).encode() + b"]" * around
    assert is_too_deep(text) == (around + depth_of(value) > MAX_DEPTH)
