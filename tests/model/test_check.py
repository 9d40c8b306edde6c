"""What may be submitted: every refusal names its field and says what would do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.errors import BadBatch, InvalidTask
from qo.model import (
    RetryPolicy,
    check_distinct,
    check_id,
    check_name,
    check_names,
    check_new,
    check_number,
    check_retry,
    check_size,
    check_type,
    check_types,
    check_whole,
)
from tests.model.samples import ID, described

NAN, INF = float("nan"), float("inf")
NO_NUMBERS: list[Any] = [NAN, INF, -INF, True, "5", None, [1]]
NO_NAMES: list[Any] = ["", "-a", ".", "..", "a/b", "a b", "é", "a\n", "a\x00", "x" * 65, "<b>", "'; --", None, 5]

NO_TYPES: list[Any] = ["", "-a", "/a", ".", "..", "a b", "é", "a\n", "a\x00", "x" * 256, "a%b", "a\\b", "<b>", None, 5]

REFUSED: dict[str, list[Any]] = {
    "id": ["", "x", ID.upper(), ID[:-1], ID + "0", ID.replace("-", ""), f"{ID}\n", "../../etc/passwd", None, 7],
    "queue": NO_NAMES,
    "type": NO_TYPES,
    "needs": [(name,) for name in NO_NAMES],
    "priority": [-1, 10, True, 1.5, None, "urgent", 10**5_000],
    "timeout": [*NO_NUMBERS, 0, 0.0, -1, 3.3e9, 10**400, 10**5_000],
    "delay": [*NO_NUMBERS, -0.1, 3.3e9, 10**5_000],
    "run_at": [*[value for value in NO_NUMBERS if value is not None], -1, 6.5e9],
    "max_retries": [-1, 10_001, 1.0, True, "3", None, 10**5_000],
    "idempotency_key": ["", "x" * 257, "a\x00", "a\n", "\ud800", 5, b"k"],
    "trace_id": ["", "x" * 257, "a\x00", "\u202e", "\ud800", 5],
    "next_id": ["", "x", "../../tasks", "0B0B0B0B-0000-8000-8000-000000000000", 5, "\ud800"],
    "ageing": [NAN, -1.0, -INF, "200", None, True],
    "window": [NAN, -1.0, "1 day", None],
}
RETRY_REFUSED: dict[str, list[Any]] = {
    "initial": [*NO_NUMBERS, -1],
    "max": [*NO_NUMBERS, -1, 3.3e9],
    "multiplier": [*NO_NUMBERS, 0, -2],
    "jitter": [*NO_NUMBERS, -0.1, 1.1],
    "timeout_growth": [*NO_NUMBERS, 0, -1],
}


@pytest.mark.parametrize("field", REFUSED)
def test_a_task_with_a_bad_field_is_refused_by_its_name(field: str) -> None:
    for value in REFUSED[field]:
        with pytest.raises(InvalidTask, match=f"^{field}: ") as caught:
            check_new(described(**{field: value}))
        assert caught.value.field == field
        assert len(str(caught.value)) < 250


@pytest.mark.parametrize("field", RETRY_REFUSED)
def test_a_retry_policy_with_a_bad_field_is_refused_by_its_name(field: str) -> None:
    for value in RETRY_REFUSED[field]:
        with pytest.raises(InvalidTask, match=rf"^retry\.{field}: "):
            check_new(described(retry=RetryPolicy(**{field: value})))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queue": "a", "type": "A9_.:/@+-z", "needs": ("x" * 64,)},
        {"type": "x" * 255},
        {"timeout": 3.2e9, "delay": 3.2e9, "run_at": 6.4e9, "max_retries": 10_000},
        {"timeout": 0.001, "delay": 0, "run_at": 0, "max_retries": 0},
        {"idempotency_key": "é" * 256, "trace_id": "x"},
        {"ageing": INF, "window": INF},
        {"ageing": 0, "window": 0},
        {"retry": RetryPolicy(initial=0, max=0, multiplier=0.1, jitter=1, timeout_growth=0.5)},
    ],
    ids=str,
)
def test_what_lies_on_the_border_is_accepted(fields: dict[str, Any]) -> None:
    new = described(**fields)
    assert check_new(new) is new


def test_a_policy_is_not_believed_because_an_equal_one_was_sound() -> None:
    check_new(described(retry=RetryPolicy(jitter=1)))
    with pytest.raises(InvalidTask, match=r"^retry\.jitter: "):
        check_new(described(retry=RetryPolicy(jitter=True)))


def test_a_payload_over_the_limit_is_refused_with_both_sizes() -> None:
    check_new(described(payload=b"x" * 1_000), payload_limit=1_000)
    with pytest.raises(InvalidTask, match=r"^payload: is 1,001 bytes, the limit is 1,000; .* reference"):
        check_new(described(payload=b"x" * 1_001), payload_limit=1_000)
    with pytest.raises(InvalidTask, match=r"^payload: is 262,145 bytes, the limit is 262,144"):
        check_new(described(payload=b"x" * (256 * 1024 + 1)))
    with pytest.raises(InvalidTask, match=r"^result: "):
        check_size("result", b"xx", 1)


def test_a_refusal_quotes_only_the_beginning_of_what_was_sent() -> None:
    with pytest.raises(InvalidTask) as caught:
        check_name("queue", "x" * 100_000)
    assert len(str(caught.value)) < 250


@given(st.text())
def test_a_name_that_passes_is_safe_as_a_path_segment_and_in_markup(name: str) -> None:
    try:
        check_name("queue", name)
    except InvalidTask:
        return
    assert name.isascii()
    assert not set(name) & set("/\\'\"<>&;%\x00\n ")
    assert name[0].isalnum()


@given(st.text())
def test_a_type_that_passes_needs_no_quotes_in_markup_or_json(name: str) -> None:
    try:
        check_type("type", name)
    except InvalidTask:
        return
    assert name.isascii()
    assert not set(name) & set("\\'\"<>&;%,=\x00\n ")
    assert name[0].isalnum()


@given(st.uuids())
def test_every_uuid_in_lower_case_is_an_id(made: object) -> None:
    assert check_id(str(made)) == str(made)


def test_a_message_states_which_side_of_zero_is_meant() -> None:
    with pytest.raises(InvalidTask, match="must be greater than 0 and at most"):
        check_number("timeout", 0, above=0.0)
    with pytest.raises(InvalidTask, match=r"must be at least 0 and at most 1$"):
        check_number("jitter", 2, maximum=1.0)
    check_whole("max_retries", 10_000)
    assert check_retry(RetryPolicy()) == RetryPolicy()


def test_a_list_of_names_is_put_in_order_each_once() -> None:
    assert check_names("needs", ["b", "a", "b"]) == ("a", "b")
    for check in (check_names, check_types):
        with pytest.raises(InvalidTask, match="needs: has 1,001 names, the limit is 1,000"):
            check("needs", (f"n{n % 9}" for n in range(1001)))
    for nonsense in ("gpu", 5, None):
        with pytest.raises(InvalidTask, match=r"^needs: .* is not a list of names"):
            check_names("needs", nonsense)  # type: ignore[arg-type]


def test_a_list_of_types_is_put_in_order_each_once() -> None:
    assert check_types("types", ["b/c", "a@b", "b/c"]) == ("a@b", "b/c")
    for nonsense in ("mail", 5, None):
        with pytest.raises(InvalidTask, match=r"^types: .* is not a list of types"):
            check_types("types", nonsense)  # type: ignore[arg-type]


def test_a_batch_names_each_task_once() -> None:
    check_distinct(iter(["a", "b"]))
    with pytest.raises(BadBatch, match=r"a batch contains a task twice: a, c$"):
        check_distinct(["a", "b", "a", "c", "c"])
