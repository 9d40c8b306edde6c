from typing import Any

import pytest

from qo.errors import InvalidTask
from qo.model import Limit, check_declared, check_key, check_limit, group_by, group_of


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"concurrency": -1}, "limit.concurrency"),
        ({"concurrency": 1.5}, "limit.concurrency"),
        ({"concurrency": True}, "limit.concurrency"),
        ({"concurrency": 10_001}, "limit.concurrency"),
        ({"rate": -1}, "limit.rate"),
        ({"rate": 0.5}, "limit.rate"),
        ({"rate": float("inf")}, "limit.rate"),
        ({"rate": 1, "per": 0}, "limit.per"),
        ({"rate": 1, "per": -1}, "limit.per"),
        ({"concurrency": 1, "key": "not a name"}, "limit.key"),
        ({"concurrency": 1, "key": "k" * 65}, "limit.key"),
        ({"concurrency": 1, "key": 5}, "limit.key"),
        ({}, "limit"),
        ({"concurrency": 0, "rate": 0}, "limit"),
    ],
)
def test_a_bad_limit_is_refused_by_the_name_of_its_option(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        check_declared(Limit(**given))
    assert caught.value.field == named


def test_something_else_is_no_limit() -> None:
    with pytest.raises(InvalidTask, match=r"qo\.Limit"):
        check_limit(5)  # type: ignore[arg-type]


def test_a_good_limit_is_accepted() -> None:
    limit = Limit(concurrency=5, rate=100, per=60, key="customer_id")
    assert check_declared(limit) is limit
    assert check_limit(Limit()) == Limit()
    assert check_key("key", "a") == "a"


def test_a_task_has_one_group() -> None:
    assert group_by(None, None) is group_by(Limit(concurrency=1), None) is None
    assert group_by(Limit(concurrency=1, key="a"), None) == group_by(None, "a") == "a"
    assert group_by(Limit(concurrency=1, key="a"), "a") == "a"
    assert group_by(Limit(concurrency=1), "a") == "a"
    with pytest.raises(InvalidTask, match="fair_by"):
        group_by(Limit(concurrency=1, key="a"), "b")


def test_the_group_is_the_value_of_the_argument() -> None:
    assert group_of("a", {"a": 5}, "limit.key") == "a=5"
    some: tuple[object, ...] = ({}, None, [1])
    for arguments in some:
        with pytest.raises(InvalidTask, match=r"limit\.key"):
            group_of("a", arguments, "limit.key")
