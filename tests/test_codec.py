"""Values, tasks and views as bytes and JSON: what is carried unchanged, and what is refused by name."""

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.codec import (
    SEALED,
    decode_task,
    decode_value,
    encode_task,
    encode_value,
    event_view,
    from_json,
    parse_json,
    task_view,
    to_json,
)
from qo.errors import InvalidTask
from qo.model import HIGH, LOW, Status, Task, claim, complete, created, event_of, kind_of
from qo.model.change import apply
from tests.model.samples import NOW, described, pending, running, wanted

NAN, INF = float("nan"), float("inf")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


# What RELIABILITY.md lists, as Python values: (value, what the message says)
VALUES: dict[str, tuple[Any, str]] = {
    "NaN": (NAN, "nan is not JSON"),
    "infinity": ({"a": [INF]}, "inf is not JSON"),
    "minus infinity": ([-INF], "-inf is not JSON"),
    "2^63": (2**63, r"outside ±2\^63"),
    "below -2^63": ({"n": -(2**63) - 1}, r"outside ±2\^63"),
    "an absurd integer": (10**5_000, r"outside ±2\^63"),
    "a lone surrogate": ("\ud800", "lone surrogate"),
    "a lone surrogate in a key": ({"\udfff": 1}, "lone surrogate"),
    "NUL in text": (["a\x00b"], "NUL"),
    "NUL in a key": ({"a\x00": 1}, "NUL"),
    "65 lists": (nested(65), "deeper than 64"),
    "an integer key": ({1: "a"}, "the key 1 is not a string"),
    "an absurd key": ({10**5_000: "a"}, "the key this int is not a string"),
    "a tuple as key": ({(1, 2): "a"}, "is not a string"),
    "no key at all": ({None: "a"}, "the key None is not a string"),
    "a list within itself": (endless(), "cannot be written as JSON"),
    "nesting without end": (nested(100_000), "cannot be written as JSON"),
    "an object": (object(), "cannot be written as JSON"),
    "a function": (print, "cannot be written as JSON"),
    "an exception": (ValueError("x"), "cannot be written as JSON"),
}
# ... and as text from outside
TEXTS: dict[str, tuple[str | bytes, str]] = {
    "NaN": ("NaN", "NaN is not JSON; send null or a string"),
    "infinity": ('{"a": Infinity}', "Infinity is not JSON"),
    "minus infinity": ("[-Infinity]", "-Infinity is not JSON"),
    "a float that overflows": ("1e999", "inf is not JSON"),
    "2^63": ("9223372036854775808", r"outside ±2\^63"),
    "below -2^63": ("-9223372036854775809", r"outside ±2\^63"),
    "an absurd integer": ("1" * 100_000, "is not JSON"),
    "a lone surrogate": ('"\\ud800"', "lone surrogate"),
    "a lone surrogate as bytes": (b'"\xed\xa0\x80"', "lone surrogate"),
    "a lone surrogate in a key": ('{"\\udfff": 1}', "lone surrogate"),
    "a key twice": ('{"a": 1, "b": 2, "a": 3}', "the key 'a' appears twice"),
    "a key twice, inside": ('[{"x": {"k": 1, "k": 1}}]', "the key 'k' appears twice"),
    "a key twice, disguised": ('{"a": 1, "\\u0061": 2}', "the key 'a' appears twice"),
    "NUL in text": ('"\\u0000"', "NUL"),
    "NUL in a key": ('{"\\u0000": 1}', "NUL"),
    "65 lists": ("[" * 65 + "]" * 65, "deeper than 64"),
    "65 objects": ('{"a":' * 65 + "1" + "}" * 65, "deeper than 64"),
    "a bomb of lists": ("[" * 100_000, "deeper than 64|is not JSON"),
    "a bomb of objects": ('{"a":' * 100_000, "deeper than 64|is not JSON"),
    "not JSON": ("{to: me}", "is not JSON"),
    "nothing": ("", "is not JSON"),
    "two values": ("1 2", "is not JSON"),
    "single quotes": ("{'a': 1}", "is not JSON"),
    "not text": (b"\xff\xfe\xfd", "is not JSON"),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_json_cannot_carry_unchanged_is_refused_by_field(name: str) -> None:
    value, says = VALUES[name]
    for field in ("payload", "result"):
        with pytest.raises(InvalidTask, match=f"^{field}: .*({says})") as caught:
            encode_value(value, field)
        assert caught.value.field == field
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", TEXTS)
def test_text_that_is_not_strict_json_is_refused_by_field(name: str) -> None:
    text, says = TEXTS[name]
    with pytest.raises(InvalidTask, match=f"^input: .*({says})") as caught:
        parse_json(text, "input")
    assert caught.value.field == "input"
    assert len(str(caught.value)) < 300


def test_a_duplicate_key_among_very_many_is_found_quickly() -> None:
    many = ",".join(f'"{n}":0' for n in range(100_000))
    with pytest.raises(InvalidTask, match="'99999' appears twice"):
        parse_json(f'{{{many},"99999":1}}')


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), nested(64), 1.7e308, 5e-324, "\U0001f600", "", {}, [], None])
def test_what_lies_on_the_border_is_carried_unchanged(value: Any) -> None:
    encoded = encode_value(value)
    assert decode_value(encoded) == value
    assert parse_json(encoded) == value


json_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | json_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=6,  # three deep and mixed: what more leaves would show costs seconds on a busy machine
)  # fmt: skip


@given(json_values)
def test_every_json_value_survives_the_round_trip(value: Any) -> None:
    assert decode_value(encode_value(value)) == value
    assert parse_json(msgspec.json.encode(value)) == value
    assert from_json(to_json(encode_value(value))) == value


def test_raw_bytes_that_would_be_read_as_an_encrypted_value_are_refused() -> None:
    for value in (SEALED[1:], bytearray(SEALED[1:] + b"\x00" * 40)):
        with pytest.raises(
            InvalidTask, match="result: bytes that begin with qo-sealed-1: look like an encrypted value"
        ):
            encode_value(value, "result")
    assert decode_value(encode_value(b"." + SEALED)) == b"." + SEALED


@given(st.binary().filter(lambda data: not data.startswith(SEALED[1:])))
def test_raw_bytes_survive_and_are_shown_as_base64(data: bytes) -> None:
    encoded = encode_value(data)
    assert decode_value(encoded) == data
    assert encode_value(bytearray(data)) == encode_value(memoryview(data)) == encoded
    shown = to_json(encoded)
    assert list(shown) == ["$base64"]
    assert from_json(shown) == data
    assert parse_json(msgspec.json.encode(shown)) == shown


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_no_input_breaks_the_strict_reader(text: bytes | str) -> None:
    try:
        value = parse_json(text)
    except InvalidTask:
        return
    assert decode_value(encode_value(value)) == value


@pytest.mark.parametrize("nonsense", ["***", "YQ", "é", 5, None, ["YQ=="]])
def test_base64_that_is_none_is_refused_by_field(nonsense: Any) -> None:
    with pytest.raises(InvalidTask, match=r"^payload: \$base64 is not base64 text"):
        from_json({"$base64": nonsense})


def test_an_object_with_more_than_the_base64_key_is_just_an_object() -> None:
    assert from_json({"$base64": "YQ==", "a": 1}) == {"$base64": "YQ==", "a": 1}


def test_stored_bytes_that_cannot_be_decoded_are_still_shown() -> None:
    assert to_json(b"{broken") == {"$base64": "e2Jyb2tlbg=="}
    assert task_view(replace(pending(), payload=b""), NOW)["payload"] == {"$base64": ""}


@dataclass
class Point:
    x: int
    when: datetime


class Shape(msgspec.Struct):
    name: str
    points: list[Point]


def test_the_types_programs_use_become_plain_json() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert decode_value(encode_value(when)) == "2030-01-02T03:04:05Z"
    assert decode_value(encode_value(Point(1, when))) == {"x": 1, "when": "2030-01-02T03:04:05Z"}
    assert decode_value(encode_value(Shape("s", []))) == {"name": "s", "points": []}
    assert decode_value(encode_value(Decimal("1.10"))) == "1.10"
    assert decode_value(encode_value(UUID(int=1))) == "00000000-0000-0000-0000-000000000001"
    assert decode_value(encode_value((1, Status.FAILED))) == [1, "failed"]
    assert decode_value(encode_value({"inner": b"a"})) == {"inner": "YQ=="}
    assert msgspec.convert(decode_value(encode_value(Shape("s", [Point(1, when)]))), Shape).points == [Point(1, when)]


def test_what_hides_inside_a_program_s_own_type_is_checked_too() -> None:
    with pytest.raises(InvalidTask, match=r"^payload: .*NUL"):
        encode_value(Shape("a\x00", []))
    with pytest.raises(InvalidTask, match=r"^payload: .*2\^63"):
        encode_value(Point(2**64, datetime(2030, 1, 1, tzinfo=UTC)))


# --- tasks

DESIGN = (  # DESIGN.md §3, and what belongs to `error` and to `status`
    "id queue type status payload result error failure_kind archived_from priority effective_priority needs group "
    "timeout max_retries retry attempt failures available_at lease_expires_at worker_id created_at updated_at "
    "started_at completed_at idempotency_key trace_id run_at batch progress progress_text version"
)


def test_a_task_is_shown_with_the_fields_of_the_design_in_their_order() -> None:
    assert " ".join(task_view(running(), NOW)) == DESIGN


def test_the_lease_id_is_never_shown() -> None:
    task = replace(running(), lease_id="secret-lease")
    assert "secret-lease" not in msgspec.json.encode(task_view(task, NOW)).decode()
    assert "secret-lease" not in msgspec.json.encode(event_view(event_of(task))).decode()


def test_a_task_is_shown_with_instants_in_utc_and_values_as_json() -> None:
    task = running(payload=encode_value({"to": "me"}), needs=("gpu", "ssd"))
    view = task_view(task, NOW)
    assert (view["status"], view["payload"], view["result"], view["needs"]) == (
        "running", {"to": "me"}, None, ["gpu", "ssd"],
    )  # fmt: skip
    assert (view["available_at"], view["lease_expires_at"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:13:50.000Z")
    assert (view["completed_at"], view["worker_id"], view["version"]) == (None, "w1", 2)
    assert set(view["retry"]) == {"initial", "max", "multiplier", "jitter", "timeout_growth"}
    done = apply(task, complete(task, encode_value(b"\x01")), NOW)
    assert done is not None
    assert task_view(done, NOW)["result"] == {"$base64": "AQ=="}


def test_a_waiting_task_is_shown_at_the_level_it_competes_at_and_a_claimed_one_at_the_level_it_reached() -> None:
    waiting = pending(priority=LOW)
    assert [task_view(waiting, NOW + waited)["effective_priority"] for waited in (0, 600, 1_800)] == [LOW, 6, HIGH]
    taken = claim(waiting, wanted(), NOW + 600)
    assert task_view(taken, NOW + 9_999)["effective_priority"] == 6


def test_an_event_is_shown_with_its_instant() -> None:
    view = event_view(event_of(running()))
    assert view["at"] == "2023-11-14T22:13:20.000Z"
    assert list(view) == ["version", "at", "status", "attempt", "failures", "worker_id", "error", "available_at", "log"]


tasks = st.builds(
    lambda payload, error, needs, attempt: replace(
        created(described(payload=payload, needs=tuple(needs)), NOW),
        error=error,
        failure_kind=kind_of(error, None),
        attempt=attempt,
    ),
    st.binary(),
    st.none() | json_text,
    st.lists(st.sampled_from(["gpu", "ssd"]), unique=True),
    st.integers(0, 99),
)


@given(tasks)
def test_a_task_survives_as_a_document_lease_and_all(task: Task) -> None:
    for each in (task, claim(task, wanted(), NOW)):
        assert decode_task(encode_task(each)) == each
