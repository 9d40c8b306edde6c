"""Who comes first: the exact promises about priorities that age."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.errors import InvalidTask
from qo.model import (
    AGEING,
    HIGH,
    LOW,
    MEDIUM,
    STRICT,
    PromotionTimes,
    effective_priority,
    effective_rank,
    in_order,
    lane_of,
    level,
    level_word,
    rank,
)
from tests.model.samples import NOW, pending

MINUTE = 60.0
INF = float("inf")


@pytest.mark.parametrize(
    ("older", "newer", "minutes"), [(MEDIUM, HIGH, 20), (LOW, MEDIUM, 10), (LOW, HIGH, 30)], ids=str
)
def test_waiting_overtakes_new_tasks_of_higher_priority_after(older: int, newer: int, minutes: float) -> None:
    mine = rank(NOW, older, AGEING)
    assert rank(NOW + minutes * MINUTE - 1, newer, AGEING) < mine
    assert rank(NOW + minutes * MINUTE, newer, AGEING) == mine
    assert rank(NOW + minutes * MINUTE + 1, newer, AGEING) > mine


def test_of_equal_priority_the_one_available_earlier_goes_first() -> None:
    assert all(rank(NOW, p, AGEING) < rank(NOW + 1e-6, p, AGEING) for p in range(10))


def test_without_ageing_it_is_first_in_first_out() -> None:
    assert rank(NOW, LOW, 0.0) == rank(NOW, HIGH, 0.0) == NOW


def test_infinite_ageing_is_strict_priority_for_a_lifetime() -> None:
    century = 100 * 365 * 86_400
    ranks = [rank(NOW + waited, p, INF) for p in range(10) for waited in (0.0, 1e9 - 1)]
    assert STRICT > 1e9 - 1
    assert all(a < b for a, b in pairwise(ranks))
    assert rank(NOW, 0, INF) == NOW
    assert rank(NOW + century, HIGH, INF) > rank(NOW, 1, INF)  # what "a lifetime" means: some thirty years


def test_strict_priority_still_tells_microseconds_apart() -> None:
    assert rank(NOW, LOW, INF) < rank(NOW + 2e-6, LOW, INF)


@pytest.mark.parametrize(("waited", "shown"), [(0, 9), (199, 9), (200, 8), (600, 6), (1_799, 1), (1_800, 0), (1e9, 0)])
def test_a_waiting_task_climbs_a_level_every_ageing_seconds(waited: float, shown: int) -> None:
    assert effective_priority(LOW, NOW, rank(NOW, LOW, AGEING), NOW + waited) == shown


def test_a_task_that_is_not_due_yet_has_not_climbed() -> None:
    assert effective_priority(LOW, NOW + 500, rank(NOW + 500, LOW, AGEING), NOW) == LOW


def test_the_highest_priority_cannot_climb() -> None:
    assert effective_priority(HIGH, NOW, rank(NOW, HIGH, AGEING), NOW + 1e6) == HIGH


def test_without_ageing_nothing_climbs() -> None:
    assert effective_priority(LOW, NOW, rank(NOW, LOW, 0.0), NOW + 1e6) == LOW


def test_strict_priority_does_not_climb_in_years() -> None:
    assert effective_priority(LOW, NOW, rank(NOW, LOW, INF), NOW + 9e8) == LOW


@given(st.integers(0, 9), st.floats(0, 1e5), st.floats(0, 1e7), st.floats(0, 1e7))
def test_effective_priority_only_ever_falls(priority: int, ageing: float, waited: float, more: float) -> None:
    at = rank(NOW, priority, ageing)
    now, later = (effective_priority(priority, NOW, at, NOW + w) for w in (waited, waited + more))
    assert 0 <= later <= now <= priority


@pytest.mark.parametrize(
    ("written", "meant"),
    [("high", 0), ("medium", 6), ("low", 9), ("HIGH", 0), ("Low", 9), ("0", 0), ("9", 9), (0, 0), (5, 5), (9, 9)],
)
def test_a_priority_is_read_as_people_write_it(written: int | str, meant: int) -> None:
    assert level(written) == meant


NONSENSE = ["urgent", "", "10", "-1", "\u0663", "\u00b2", "9" * 5_000, 10, -1, 10**5_000, True, 1.0, None]


@pytest.mark.parametrize("written", NONSENSE, ids=range(len(NONSENSE)))
def test_any_other_priority_is_refused_by_name(written: int | str) -> None:
    with pytest.raises(InvalidTask, match=r"^priority: .* is not high, medium, low or 0\.\.9") as caught:
        level(written)
    assert len(str(caught.value)) < 200


def test_every_priority_has_a_named_level() -> None:
    assert [level_word(priority) for priority in range(10)] == ["high"] + ["medium"] * 6 + ["low"] * 3


def test_a_task_that_has_waited_for_its_levels_goes_by_the_instant_it_was_due() -> None:
    mine = rank(NOW, MEDIUM, AGEING)
    assert effective_rank(mine, NOW, NOW + 20 * MINUTE - 1) == mine
    assert effective_rank(mine, NOW, NOW + 20 * MINUTE) == NOW


def test_nothing_overtakes_its_own_lane() -> None:
    slow, quick = pending(NOW, priority=5, ageing=10.0), pending(NOW - 1, priority=5, ageing=30.0)
    other = pending(NOW - 0.5, priority=0)
    assert in_order([slow, quick, other], NOW + 49, lane_of) == [other, slow, quick]
    assert in_order([slow, quick, other], NOW + 200, lane_of) == [other, slow, quick]


def test_by_default_the_times_of_promotion_are_the_usual_ageing() -> None:
    assert [PromotionTimes().ageing(priority) for priority in range(10)] == [AGEING] * 10


def test_times_of_promotion_are_what_a_task_waits_to_meet_a_new_one_above_it() -> None:
    times = PromotionTimes(low_to_medium=60, medium_to_high=900)
    low, medium = (rank(NOW, each, times.ageing(each)) for each in (LOW, MEDIUM))
    assert medium == NOW + 900
    assert low == pytest.approx(NOW + 960) == rank(NOW + 60, MEDIUM, times.ageing(MEDIUM))
    waits = [each * times.ageing(each) for each in range(10)]
    assert waits == sorted(waits)
    assert PromotionTimes(low_to_medium=INF).ageing(LOW) == INF
