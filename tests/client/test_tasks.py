"""How a call becomes a payload and a payload a call again."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

import msgspec
import pytest

from qo.arguments import STYLES, PayloadArguments, SignatureArguments
from qo.codec import encode_value
from qo.errors import InvalidSetting, InvalidTask
from qo.model import check_name
from qo.running_task import current_task, running
from qo.tasks import Registry, make_handler, make_options
from tests.model import samples


@dataclass
class Address:
    street: str
    number: int = 1


def called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    arguments = SignatureArguments(function)
    positional, named = arguments.decode(arguments.encode(args, kwargs))
    assert positional == ()
    return named


def test_arguments_travel_by_name_and_come_back_with_their_types() -> None:
    def send(to: Address, at: datetime, tags: set[str], mode: Literal["fast", "slow"] = "fast") -> None: ...

    at = datetime.fromisoformat("2030-01-01T00:00:00+00:00")
    assert called(send, Address("Main"), at, {"a"}) == {"to": Address("Main", 1), "at": at, "tags": {"a"}}
    assert called(send, to=Address("Main"), at=at, tags=[], mode="slow")["mode"] == "slow"


def test_a_call_with_all_arguments_is_checked_like_any_other() -> None:
    def send(to: str, copies: int) -> None: ...

    for named in (called(send, "a", 2), called(send, "a", copies=2), called(send, copies=2, to="a")):
        assert named == {"to": "a", "copies": 2}
    with pytest.raises(InvalidTask, match="multiple values for argument 'to'"):
        called(send, "a", to="b")
    with pytest.raises(InvalidTask, match="missing a required argument: 'copies'"):
        called(send, "a", subject="Hi")
    with pytest.raises(InvalidTask, match="does not accept it: Expected `int`"):
        called(send, "a", "two")


def test_a_default_is_left_to_the_function() -> None:
    def send(to: str, subject: str | None = "Hi", copies: int = 1) -> None: ...

    assert called(send, "a") == {"to": "a"}
    assert called(send, "a", None) == {"to": "a", "subject": None}


def test_arguments_without_a_type_travel_as_they_are() -> None:
    def loose(a, b=None):  # noqa: ANN001, ANN202
        return a, b

    assert called(loose, {"x": [1]}) == {"a": {"x": [1]}}
    assert called(loose, 1, b="c") == {"a": 1, "b": "c"}


def test_bytes_inside_the_arguments_come_back_as_bytes() -> None:
    def store(data: bytes) -> None: ...

    assert called(store, b"\x00\xff") == {"data": b"\x00\xff"}


def test_open_keywords_travel_too() -> None:
    def send(to: str, **headers: str) -> None: ...

    assert called(send, "a", x="1", y="2") == {"to": "a", "x": "1", "y": "2"}
    assert called(send, "a") == {"to": "a"}


def test_bounds_in_an_annotation_are_kept() -> None:
    def count(n: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...

    assert called(count, 1) == {"n": 1}
    with pytest.raises(InvalidTask, match=r"^payload: count\(\) does not accept it: .*`\$\.n`"):
        called(count, 0)


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b'{"b":1}', b'{"a":"x"}', b'{"a":1,"b":2}', b"\x00raw", b"\xff"]
)
def test_a_payload_that_is_no_call_is_refused(payload: bytes) -> None:
    def one(a: int) -> None: ...

    with pytest.raises(InvalidTask, match=r"^payload: one\(\)"):
        SignatureArguments(one).decode(payload)


def test_an_annotation_only_type_checkers_can_read_is_no_obstacle() -> None:
    def vague(a: "NoSuchName") -> "NoSuchName": ...  # type: ignore[name-defined]  # noqa: F821

    assert called(vague, 1) == {"a": 1}
    assert make_handler(vague, type="t", options=make_options(vague)).decode_result(b"1") == 1


def test_a_type_json_cannot_tell_apart_is_refused_where_it_is_written() -> None:
    def unclear(a: Address | dict[str, int]) -> None: ...

    with pytest.raises(InvalidSetting, match="unclear: an argument of this type cannot be stored as JSON"):
        SignatureArguments(unclear)


# --- the whole payload as one argument


def test_a_payload_may_be_the_one_argument() -> None:
    arguments = PayloadArguments(lambda payload: payload)
    assert arguments.decode(arguments.encode(({"a": 1},), {})) == (({"a": 1},), {})
    assert arguments.decode(arguments.encode((), {"payload": b"raw"})) == ((b"raw",), {})


def test_a_typed_payload_is_checked_on_both_sides() -> None:
    def deliver(to: Address) -> None: ...

    arguments = PayloadArguments(deliver)
    assert arguments.decode(arguments.encode((Address("Main"),), {})) == ((Address("Main"),), {})
    with pytest.raises(InvalidTask, match=r"^payload: does not match the annotation of the handler"):
        arguments.encode(({"street": 5},), {})


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"1 2"])
def test_an_unreadable_payload_is_refused(payload: bytes) -> None:
    for function in (lambda payload: payload, _typed):
        with pytest.raises(InvalidTask, match=r"^payload: does not match the annotation of the handler"):
            PayloadArguments(function).decode(payload)


def _typed(_payload: int) -> None: ...


def test_a_handler_of_payloads_must_take_one() -> None:
    with pytest.raises(InvalidSetting, match="must take the payload as its first argument"):
        PayloadArguments(lambda: None)


def test_every_style_is_found_by_its_name() -> None:
    assert {"signature": SignatureArguments, "payload": PayloadArguments} == STYLES


# --- registry, options, results


def test_a_registry_lists_replaces_and_finds() -> None:
    def first() -> None: ...

    def second() -> None: ...

    registry = Registry()
    registry.add(make_handler(first, type="a", options=make_options(first)))
    other = make_handler(second, type="a", options=make_options(second))
    with pytest.raises(InvalidSetting):
        registry.add(other)
    registry.replace(other)
    assert [handler.function for handler in registry] == [second]
    assert (registry.get("a"), registry.get("b"), len(registry)) == (other, None, 1)


def test_options_are_taken_as_people_write_them() -> None:
    def plain() -> None: ...

    options = make_options(plain, timeout=timedelta(minutes=1), max_retries=2, priority="low", needs=["b", "a", "b"])
    assert (options.timeout, options.max_retries, options.priority, options.needs) == (60, 2, 9, ("a", "b"))
    assert (options.executor, make_options(_coroutine).executor) == ("thread", "async")
    assert make_options(plain, executor="process").executor == make_options(_coroutine, executor="process").executor
    assert check_name("queue", options.queue) == "default"


async def _coroutine() -> None: ...


def test_a_result_is_decoded_as_the_function_promises() -> None:
    def find() -> Address | None: ...

    handler = make_handler(find, type="find", options=make_options(find))
    assert handler.decode_result(encode_value(Address("Main"))) == Address("Main")
    assert handler.decode_result(b"null") is None
    assert handler.decode_result(encode_value(b"raw")) == b"raw"


def test_the_running_task_is_known_inside_its_context() -> None:
    task = samples.running()
    token = running.set(task)
    seen = current_task()
    running.reset(token)
    assert (seen.id, seen.attempt, seen.payload) == (task.id, task.attempt, task.payload)
