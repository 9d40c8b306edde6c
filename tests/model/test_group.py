import pytest

from qo.errors import InvalidTask
from qo.model import (
    ClaimAllowance,
    ClaimRequest,
    check_group,
    check_new,
    created,
    eligible,
    group_in,
    group_key,
    group_limit,
    has_group_limits,
    make_group,
    missing_group,
    parse_group,
    regrouped,
    shown_group,
    type_of_key,
    with_group,
    without_group,
    without_group_limits,
)
from qo.testing.samples import new


@pytest.mark.parametrize(
    ("value", "group"),
    [
        (42, "customer=42"),
        ("42", "customer=42"),
        ("a b", "customer=a%20b"),
        ("", "customer="),
        (None, "customer=null"),
        ({"b": 1, "a": [2]}, "customer=%7B%22a%22:%5B2%5D,%22b%22:1%7D"),
        ("Zoë", "customer=Zo%C3%AB"),
    ],
)
def test_a_group_is_the_name_and_the_value_of_an_argument(value: object, group: str) -> None:
    assert make_group("customer", value) == group
    check_group("group", group)


@pytest.mark.parametrize(
    ("written", "group"),
    [
        ("customer=42", "customer=42"),
        ("customer=a b", "customer=a%20b"),
        ("customer=a%20b", "customer=a%20b"),
        ("customer=Zoë & Söhne=1", "customer=Zo%C3%AB%20%26%20S%C3%B6hne=1"),
        ("customer=" + "x" * 500, make_group("customer", "x" * 500)),
        ("customer=%", "customer=%"),
    ],
)
def test_a_group_may_be_written_without_escapes(written: str, group: str) -> None:
    assert parse_group("key", written) == group


@pytest.mark.parametrize("written", ["", "customer", "=1", "a b=1", "1a=2", f"{'x' * 65}=1"])
def test_a_text_that_names_no_argument_and_value_is_refused(written: str) -> None:
    with pytest.raises(InvalidTask, match="is not an argument and its value, such as customer_id=42"):
        parse_group("key", written)


def test_the_key_of_a_group_names_its_type() -> None:
    assert type_of_key(group_key("send", "customer_id=42")) == "send"


def test_a_group_can_be_shown_to_people() -> None:
    assert shown_group(make_group("customer", "Zoë & Söhne")) == "customer=Zoë & Söhne"


def test_a_long_value_is_hashed_so_that_different_ones_have_different_groups() -> None:
    one, other = make_group("customer", "x" * 500 + "1"), make_group("customer", "x" * 500 + "2")
    assert one != other
    assert len(one) < 60
    assert check_group("group", one).startswith("customer=sha256:")


def test_a_group_is_kept_before_the_capabilities() -> None:
    stored = with_group(("gpu", "ssd"), "customer=1")
    assert (group_in(stored), without_group(stored)) == ("customer=1", ("gpu", "ssd"))
    assert (group_in(("gpu",)), without_group(("gpu",)), with_group(("gpu",), None)) == (None, ("gpu",), ("gpu",))
    task = created(new(needs=stored), now=0.0)
    assert (task.group, task.needs) == ("customer=1", ("gpu", "ssd"))


@pytest.mark.parametrize("group", ["", "customer", "=1", "a b=1", "customer=a b", "customer=" + "x" * 200, "1a=2", 5])
def test_a_bad_group_is_refused(group: object) -> None:
    with pytest.raises(InvalidTask, match="group"):
        check_group("group", group)  # type: ignore[arg-type]


def test_a_new_task_may_have_one_group_and_no_capability_may_look_like_one() -> None:
    check_new(new(group="customer=1", needs=("gpu",)))
    for needs in (("gpu", "!customer=1"), ("!customer=1", "!customer=2"), ("!nonsense",)):
        with pytest.raises(InvalidTask, match=r"needs|group"):
            check_new(new(needs=needs))


def request(**fields: object) -> ClaimRequest:
    return ClaimRequest(worker_id="w", lease_id="l", limit=5, **fields)  # type: ignore[arg-type]


def test_only_a_worker_that_knows_groups_takes_their_tasks() -> None:
    assert not eligible(request(), "q", "t", ("!customer=1",))
    assert eligible(request(takes_groups=True), "q", "t", ("!customer=1",))
    assert not eligible(request(takes_groups=True), "q", "t", ("!customer=1", "gpu"))
    assert eligible(request(takes_groups=True, capabilities=frozenset({"gpu"})), "q", "t", ("!customer=1", "gpu"))
    assert not eligible(request(takes_groups=True, queues=("x",)), "q", "t", ("!customer=1",))
    full = request(takes_groups=True, group_limits={group_key("t", "customer=1"): 0})
    assert not eligible(full, "q", "t", ("!customer=1",))
    assert eligible(full, "q", "other", ("!customer=1",))
    assert eligible(full, "q", "t", ())
    assert eligible(without_group_limits(full), "q", "t", ("!customer=1",))
    assert (has_group_limits(full), has_group_limits(request())) == (True, False)
    assert without_group_limits(request()) == request()


def test_the_limit_of_a_group_goes_before_that_of_its_type() -> None:
    limited = request(per_group_limits={"t": 2}, group_limits={"t a=1": 4})
    assert [group_limit(limited, "t", "a=1"), group_limit(limited, "t", "a=2"), group_limit(limited, "x", "a=1")] == [
        4,
        2,
        5,
    ]


def test_an_allowance_counts_types_and_groups() -> None:
    left = ClaimAllowance(request(per_type_limits={"t": 3}, per_group_limits={"t": 2}))
    assert [left.take("t", ("!a=1",)) for _ in range(3)] == [True, True, False]
    assert [left.take("t", ()), left.take("t", ()), left.take("t", ("!a=2",)), left.take("x", ())] == [
        True,
        False,
        False,
        True,
    ]
    left.give_back("t", ("!a=1",))
    left.give_back("x", ())
    assert left.limits_left() == ({"t": 1}, {"t a=1": 1})
    assert left.take("t", ("!a=1",))
    assert all(ClaimAllowance(request()).take("t", ("!a=1",)) for _ in range(9))


def test_tasks_without_the_argument_are_a_group_that_no_value_gives() -> None:
    group = missing_group("customer")
    assert check_group("group", group) == group
    assert shown_group(group) == "no customer"
    assert make_group("customer", group.partition("=")[2]) != group


def test_a_task_moves_to_another_group_with_its_capabilities() -> None:
    assert regrouped(with_group(("gpu",), "customer=1"), "customer=2") == with_group(("gpu",), "customer=2")
    assert regrouped(("gpu",), "customer=2") == with_group(("gpu",), "customer=2")
