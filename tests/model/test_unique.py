"""Keys of unique tasks, and the change that replaces a waiting one."""

from datetime import timedelta

import pytest

from qo.errors import InvalidTask
from qo.model import NewTask, Unique, amend, apply, check_unique, complete, unique_key
from qo.model.life_cycle import NOW, sample
from qo.model.task import Status, admit

ID = "00000000-0000-8000-8000-000000000001"


def test_the_order_of_arguments_does_not_matter() -> None:
    assert unique_key(Unique(), b'{"a":1,"b":2}') == unique_key(Unique(), b'{"b": 2, "a": 1}')
    assert unique_key(Unique(by=("a", "b")), b'{"a":1,"b":2,"c":3}') == unique_key(
        Unique(by=("b", "a")), b'{"b":2,"a":1}'
    )


def test_other_arguments_have_other_keys() -> None:
    keys = {
        unique_key(Unique(), b'{"a":1}'),
        unique_key(Unique(), b'{"a":"1"}'),
        unique_key(Unique(), b'["a",1]'),
        unique_key(Unique(by=("a",)), b'{"a":1}'),
        unique_key(Unique(by=("a",)), b'{"a":2}'),
        unique_key(Unique(), b"\x00raw"),
    }
    assert len(keys) == 6 and all(len(key) < 60 for key in keys)


@pytest.mark.parametrize("payload", [b"{", b"\xff", b"[1]", b"\x00raw"])
def test_arguments_that_cannot_be_found_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidTask):
        unique_key(Unique(by=("a",)), payload)


def test_seconds_and_timedeltas_are_windows() -> None:
    assert [Unique(within=within).window for within in (None, 5, timedelta(minutes=1))] == [0.0, 5, 60.0]
    with pytest.raises(InvalidTask, match=r"unique\.within"):
        check_unique(Unique(within="hour"))  # type: ignore[arg-type]


def test_an_amended_task_has_the_values_of_the_submission() -> None:
    new = NewTask(id=ID, queue="q", type="t", payload=b"2", priority=3, ageing=10.0, run_at=NOW + 50)
    changed = apply(sample(Status.PENDING), amend(ID, new), NOW)
    assert changed is not None
    assert (changed.payload, changed.priority, changed.available_at, changed.rank) == (b"2", 3, NOW + 50, NOW + 80)
    assert apply(sample(Status.RUNNING), amend(ID, new), NOW) is None


@pytest.mark.parametrize(
    ("status", "until_started", "is_new"),
    [
        (Status.PENDING, True, False),
        (Status.RUNNING, True, True),
        (Status.RUNNING, False, False),
        (Status.COMPLETED, False, True),
    ],
)
def test_a_key_is_free_after_the_start_or_the_end(status: Status, *, until_started: bool, is_new: bool) -> None:
    new = NewTask(id=ID, queue="q", type="t", idempotency_key="k", window=0.0, next_id=ID, until_started=until_started)
    assert (admit(sample(status), new, NOW) is not None) is is_new


@pytest.mark.parametrize(
    ("unique", "option"),
    [
        ("args", "unique"),
        (Unique(by=()), "unique.by"),
        (Unique(by="customer"), "unique.by"),
        (Unique(by=(1,)), "unique.by"),  # type: ignore[arg-type]
        (Unique(within=-1), "unique.within"),
        (Unique(until="stopped"), "unique.until"),  # type: ignore[arg-type]
        (Unique(on_duplicate="drop"), "unique.on_duplicate"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_is_named(unique: Unique, option: str) -> None:
    with pytest.raises(InvalidTask) as refused:
        check_unique(unique)
    assert refused.value.field == option


def test_good_options_pass() -> None:
    for unique in (Unique(), Unique(by=("a",), within=timedelta(1), until="started", on_duplicate="raise")):
        assert check_unique(unique) is unique


def test_the_size_of_a_change_is_that_of_its_values() -> None:
    new = NewTask(id=ID, queue="q", type="t", payload=b"12345")
    assert amend(ID, new).size == 5
    assert complete(sample(Status.RUNNING), b"123", log="12").size == 5
