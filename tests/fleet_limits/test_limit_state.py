"""The decisions about slots and starts, without a store."""

import pytest

from qo.fleet_limits.limit_state import CANCEL_GRACE, Holder, LimitState, over, reserve, spacing, starts_left, tolerance
from qo.model import LEASE, Limit, Status, Task
from qo.web.remote.messages import LEASE as HTTP_LEASE

_ONE = Limit(concurrency=1)


def _task(number: int = 1, *, attempt: int = 1, status: Status = Status.RUNNING, updated_at: float = 0.0) -> Task:
    return Task(
        id=f"{number:08x}-0000-8000-8000-000000000000", queue="q", type="t", available_at=0.0, created_at=0.0,
        updated_at=updated_at, rank=0.0, attempt=attempt, status=status,
    )  # fmt: skip


def test_a_late_attempt_does_not_replace_a_newer_one() -> None:
    state = reserve(LimitState(), [(_task(attempt=2), "", _ONE)], now=0.0, horizon=0.25).state
    late = reserve(state, [(_task(attempt=1), "", _ONE)], now=1.0, horizon=0.25)
    assert (late.admitted, late.refused, late.state) == ({}, (_task().id,), state)


def test_a_new_attempt_takes_over_the_slot_of_the_old_one() -> None:
    state = reserve(LimitState(), [(_task(attempt=1), "", _ONE)], now=0.0, horizon=0.25).state
    found = reserve(state, [(_task(attempt=2), "", _ONE)], now=1.0, horizon=0.25)
    assert found.state.holders == {"": {_task().id: Holder(2, "", 1.0)}}


@pytest.mark.parametrize("before", [Limit(rate=1, per=86400), Limit(rate=5, per=3600)])
def test_a_raised_rate_applies_immediately(before: Limit) -> None:
    state = reserve(LimitState(), [(_task(), "", before)], now=0.0, horizon=0.25).state
    raised = Limit(rate=100)
    assert starts_left(state, "", before, now=1.0, horizon=0.25) == 0
    assert starts_left(state, "", raised, now=1.0, horizon=0.25)
    found = reserve(state, [(_task(2), "", raised)], now=1.0, horizon=0.25)
    assert found.admitted == {_task(2).id: 1.0}
    assert found.state.next_at[""] == pytest.approx(1.0 + spacing(raised))


def test_a_clock_that_was_wrong_does_not_stop_a_rate() -> None:
    limit = Limit(rate=10)
    state = reserve(LimitState(), [(_task(), "", limit)], now=3600.0, horizon=0.25).state
    assert reserve(state, [(_task(2), "", limit)], now=0.0, horizon=0.25).admitted == {_task(2).id: 0.0}


def test_a_start_has_time_for_timers_and_threads_however_short_the_window_is() -> None:
    assert tolerance(Limit(rate=10, per=0.01)) >= 0.02
    assert tolerance(Limit(rate=10, per=1.0)) == pytest.approx(0.04)


def test_the_slot_of_a_cancelled_task_stays_until_every_worker_has_been_told() -> None:
    task = _task(status=Status.CANCELLED, updated_at=100.0)
    holders = [(task.id, 1)]
    assert max(LEASE, HTTP_LEASE) <= CANCEL_GRACE
    assert over({task.id: task}, holders, 100.0 + max(LEASE, HTTP_LEASE) - 1) == set()
    assert over({task.id: task}, holders, 100.0 + CANCEL_GRACE) == set(holders)


def test_a_read_of_an_earlier_attempt_frees_no_slot() -> None:
    task = _task(attempt=1)
    assert over({task.id: task}, [(task.id, 2)], 0.0) == set()
    assert over({task.id: task}, [(task.id, 0)], 0.0) == {(task.id, 0)}
