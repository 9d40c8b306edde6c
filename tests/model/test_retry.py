"""When a failed task comes back, and how long the next try may take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.errors import InvalidTask
from qo.model import SLOW_POLICY, RetryPolicy, Task, after_error, apply, check_retry, claim
from qo.model.task import LONGEST
from tests.model.samples import NOW, running, wanted

plain = RetryPolicy(jitter=0.0)
lucks = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RetryPolicy,
    initial=st.floats(0, LONGEST),
    max=st.floats(0, LONGEST),
    multiplier=st.floats(0, LONGEST, exclude_min=True),
    jitter=st.floats(0, 1),
    timeout_growth=st.floats(0, LONGEST, exclude_min=True),
)


def test_delays_double_up_to_the_cap() -> None:
    assert [plain.delay(failures, 0.9) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_spreads_the_delay_evenly_around_its_exact_value() -> None:
    policy = RetryPolicy(initial=8, jitter=0.25)
    assert [policy.delay(1, random) for random in (0.0, 0.5, 1.0)] == [6, 8, 10]


def test_jitter_stays_inside_the_cap() -> None:
    delays = [SLOW_POLICY.delay(failures, 0.5) for failures in range(1, 8)]
    assert delays == [10, 40, 160, 640, 2_560, 10_240, 21_600]
    assert [SLOW_POLICY.delay(1, random) for random in (0.0, 1.0)] == [8, 12]
    assert [SLOW_POLICY.delay(9, random) for random in (0.0, 1.0)] == [17_280, 21_600]


@pytest.mark.parametrize("multiplier", [1.05, 2, 2.0, 1e3, 3_200_000_000, 3.2e9])
def test_ten_thousand_failures_wait_for_the_longest_time_and_not_for_ever(multiplier: float) -> None:
    policy = check_retry(RetryPolicy(multiplier=multiplier, max=3_600, jitter=0.0))
    assert policy.delay(10_000, 0.5) == 3_600


def test_a_policy_without_delay_never_waits() -> None:
    assert RetryPolicy(initial=0, multiplier=1e9).delay(10_000, 0.5) == 0


def test_a_multiplier_below_one_makes_later_tries_quicker() -> None:
    assert RetryPolicy(initial=8, multiplier=0.5, jitter=0).delay(4, 0.5) == 1


@given(policies, st.integers(1, 10_001), lucks)
def test_a_delay_lies_within_the_jitter_of_the_cap(policy: RetryPolicy, failures: int, random: float) -> None:
    assert 0 <= policy.delay(failures, random) <= policy.max * (1 + policy.jitter) * (1 + 1e-9)


@given(policies, st.integers(2, 10_001), lucks)
def test_a_policy_that_grows_never_waits_less_than_before(policy: RetryPolicy, failures: int, random: float) -> None:
    if policy.multiplier >= 1:
        assert policy.delay(failures, random) >= policy.delay(failures - 1, random)


def failed(task: Task, attempt: int) -> Task:
    task = claim(task, wanted(lease_id=f"lease-{attempt}"), NOW)
    again = apply(task, after_error(task, "e", random=0.5), NOW)
    assert again is not None
    return again


def test_each_retry_may_take_longer_than_the_try_before() -> None:
    task = replace(running(timeout=10.0), retry=RetryPolicy(timeout_growth=1.5), max_retries=9)
    timeouts = []
    for attempt in range(3):
        task = failed(task, attempt)
        timeouts.append(task.time_limit)
    assert timeouts == [15, 22.5, 33.75] and task.timeout == 10


def test_timeouts_stop_growing_after_a_hundred_years() -> None:
    task = replace(running(timeout=10.0), retry=RetryPolicy(timeout_growth=LONGEST), max_retries=10_000)
    for attempt in range(40):
        task = failed(task, attempt)
    assert task.time_limit == LONGEST


def test_another_object_as_a_policy_is_refused_by_its_value() -> None:
    with pytest.raises(InvalidTask, match=r"retry: 3 is not a qo\.RetryPolicy"):
        check_retry(3)  # type: ignore[arg-type]
