"""Which tasks a look shows, whom a claim serves, and where a page ends."""

from typing import Any

import pytest
from msgspec.structs import replace

from qo.errors import InvalidSetting
from qo.model import FINISHED, Filter, Position, Status, check_cursor, cursor, eligible, is_id, is_retrying, page_start
from tests.model.samples import ID, NOW, pending, running, wanted


def test_an_empty_filter_shows_everything() -> None:
    assert Filter().matches(pending(), NOW)


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        (Filter(queues=("x", "q")), True),
        (Filter(queues=("x",)), False),
        (Filter(types=("t",)), True),
        (Filter(types=("x",)), False),
        (Filter(statuses=(Status.RUNNING, Status.FAILED)), True),
        (Filter(statuses=(Status.FAILED,)), False),
        (Filter(worker_id="w1"), True),
        (Filter(worker_id="w2"), False),
        (Filter(queues=("q",), types=("x",)), False),
        (Filter(shards=("0", "f")), True),
        (Filter(shards=("1",)), False),
        (Filter(retrying=True), True),
        (Filter(retrying=False), True),
    ],
    ids=repr,
)
def test_every_field_of_a_filter_must_agree(where: Filter, *, shown: bool) -> None:
    assert where.matches(running(), NOW) is shown


def test_leases_that_ran_out_a_while_ago_are_found() -> None:
    task, where = running(), Filter(expired_for=5.0)  # until NOW + 30
    assert [where.matches(task, NOW + late) for late in (30, 34, 35)] == [False, False, True]
    assert where.matches(replace(task, lease_expires_at=None), NOW)
    assert not where.matches(pending(), NOW + 1e6)


def test_tasks_that_ended_a_while_ago_are_found() -> None:
    task, where = replace(running(), status=Status.FAILED, completed_at=NOW), Filter(finished_for=5.0)
    assert [where.matches(task, NOW + late) for late in (0, 4, 5)] == [False, False, True]
    assert where.matches(replace(task, completed_at=None), NOW)
    assert not where.matches(running(), NOW + 1e6)


def test_pending_tasks_are_distinguished_by_whether_an_attempt_failed() -> None:
    fresh, failed = pending(), replace(pending(), failures=1)
    assert [Filter(retrying=True).matches(task, NOW) for task in (fresh, failed)] == [False, True]
    assert [Filter(retrying=False).matches(task, NOW) for task in (fresh, failed)] == [True, False]
    assert not is_retrying(replace(running(), failures=1))


def test_a_cursor_names_a_place_exactly() -> None:
    task = pending(NOW + 0.1)
    assert page_start(cursor(task), None) == Position(NOW + 0.1, ID)


@pytest.mark.parametrize(
    "nonsense", ["yesterday", "~", "x~y", "1.0~y", f"nan~{ID}", f"inf~{ID}", f"-1~{ID}", f"1e300~{ID}", f"1.0~{ID}\n"]
)
def test_an_invalid_cursor_is_refused(nonsense: str) -> None:
    with pytest.raises(InvalidSetting, match="not a position in a listing"):
        check_cursor(nonsense)


@pytest.mark.parametrize(
    ("fields", "served"),
    [
        ({}, True),
        ({"queues": ("q", "x")}, True),
        ({"queues": ("x",)}, False),
        ({"types": ("t",)}, True),
        ({"types": ("x",)}, False),
        ({"queues": ("q",), "types": ("x",)}, False),
    ],
)
def test_a_worker_requests_tasks_by_queue_and_type(fields: dict[str, tuple[str, ...]], *, served: bool) -> None:
    assert eligible(wanted(**fields), "q", "t", ()) is served


def test_a_worker_needs_every_capability_a_task_needs() -> None:
    able = wanted(capabilities=frozenset({"gpu", "ssd"}))
    assert [eligible(able, "q", "t", needs) for needs in ((), ("gpu",), ("gpu", "ssd"), ("gpu", "arm"))] == [
        True,
        True,
        True,
        False,
    ]


def test_a_page_starts_behind_a_task_and_before_an_instant() -> None:
    task = pending()
    behind, before = page_start(cursor(task), None), page_start("", task.created_at)
    assert behind is not None
    assert before is not None
    assert before < behind < (page_start("", task.created_at + 0.001) or before)
    assert page_start(cursor(task), task.created_at) == before
    assert page_start(cursor(task), task.created_at + 1) == behind
    assert page_start("", None) is None
    assert check_cursor("") == ""


@pytest.mark.parametrize(
    ("fields", "possible"),
    [
        ({}, set(Status)),
        ({"statuses": (Status.PENDING, Status.FAILED)}, {Status.PENDING, Status.FAILED}),
        ({"expired_for": 0.0}, {Status.RUNNING}),
        ({"expired_for": 0.0, "statuses": (Status.PENDING,)}, set()),
        ({"finished_for": 0.0}, set(FINISHED)),
        ({"finished_for": 0.0, "statuses": (Status.RUNNING, Status.FAILED)}, {Status.FAILED}),
        ({"finished_for": 0.0, "expired_for": 0.0}, set()),
    ],
)
def test_a_filter_knows_which_statuses_can_match(fields: dict[str, Any], possible: set[Status]) -> None:
    assert Filter(**fields).possible_statuses == possible


def test_a_filter_knows_which_lanes_it_covers() -> None:
    lanes = [("q", "t"), ("q", "u"), ("r", "t")]
    for where, covered in (
        (Filter(), lanes),
        (Filter(queues=("q",)), lanes[:2]),
        (Filter(types=("t",)), [lanes[0], lanes[2]]),
        (Filter(queues=("q", "s"), types=("u",)), [lanes[1]]),
    ):
        covers = where.lane_matcher()
        assert [lane for lane in lanes if covers(*lane)] == covered


def test_an_id_is_a_uuid_in_lower_case() -> None:
    assert is_id(ID)
    assert not any(is_id(text) for text in ("", "x", ID.upper(), ID + "\n", ID.replace("-", ""), f"../{ID}"))
