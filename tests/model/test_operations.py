"""What a person does with a pending or finished task, and the three kinds of pending tasks."""

import pytest
from msgspec.structs import replace

from qo.model import (
    AGEING,
    STRICT,
    Change,
    Filter,
    PendingKind,
    Status,
    Task,
    apply,
    cancel,
    complete,
    pending_kind,
    replay,
    replay_finished,
    reschedule,
    run_now,
    set_priority,
    statuses_and_kinds,
)
from tests.model.samples import ID, NOW, pending, running


def done(task: Task, change: Change, now: float = NOW) -> Task:
    changed = apply(task, change, now)
    assert changed is not None
    return changed


def test_running_now_is_refused_if_a_task_is_due_so_that_it_keeps_its_place() -> None:
    assert apply(pending(), run_now(ID), NOW + 5) is None
    task = done(pending(delay=60.0, priority=3), run_now(ID), NOW + 5)
    assert (task.available_at, task.rank) == (NOW + 5, NOW + 5 + 3 * AGEING)
    retrying = replace(pending(delay=60.0), failures=2)
    assert done(retrying, run_now(ID), NOW + 5).failures == 2


@pytest.mark.parametrize(("at", "available"), [(NOW + 90, NOW + 90), (NOW - 90, NOW + 5), (0.0, NOW + 5)])
def test_a_task_rescheduled_to_the_past_is_due_now(at: float, available: float) -> None:
    task = done(pending(delay=60.0, priority=3), reschedule(ID, at), NOW + 5)
    assert (task.available_at, task.rank) == (available, available + 3 * AGEING)


@pytest.mark.parametrize("delay", [0.0, 60.0])
@pytest.mark.parametrize("ageing", [0.0, 7.0, float("inf")])
@pytest.mark.parametrize("priority", [0, 4, 9])
def test_a_task_with_a_new_priority_ranks_as_if_it_was_submitted_with_it(
    priority: int, ageing: float, delay: float
) -> None:
    task = done(pending(priority=6, delay=delay), set_priority(ID, priority, ageing), NOW + 5)
    expected = pending(priority=priority, ageing=ageing, delay=delay)
    assert (task.priority, task.rank, task.available_at) == (priority, expected.rank, expected.available_at)
    assert done(task, set_priority(ID, 9, float("inf")), NOW + 6).rank == expected.due_at + 9 * STRICT


def test_a_task_that_a_worker_has_keeps_its_time_and_its_priority() -> None:
    for change in (run_now(ID), reschedule(ID, NOW), set_priority(ID, 0)):
        assert apply(running(), change, NOW) is None
        assert apply(done(pending(), cancel(ID)), change, NOW) is None


def test_a_completed_task_is_replayed_only_on_request() -> None:
    completed = done(running(), complete(running(), b"1"))
    assert apply(completed, replay(ID), NOW) is None
    again = done(completed, replay_finished(ID), NOW + 5)
    assert (again.status, again.result, again.available_at) == (Status.PENDING, None, NOW + 5)


def test_a_pending_task_is_ready_scheduled_or_retrying() -> None:
    later = pending(delay=60.0)
    failed = replace(later, failures=1)
    assert pending_kind(pending(), NOW) is PendingKind.READY
    assert pending_kind(later, NOW) is PendingKind.SCHEDULED
    assert pending_kind(failed, NOW) is PendingKind.RETRYING
    assert pending_kind(later, NOW + 60) is pending_kind(failed, NOW + 60) is PendingKind.READY
    assert pending_kind(running(), NOW) is None


def test_a_filter_by_kind_concerns_only_pending_tasks() -> None:
    where = Filter(pending=(PendingKind.SCHEDULED,))
    assert [where.matches(task, NOW) for task in (pending(), pending(delay=9.0), running())] == [False, True, True]


def test_names_of_statuses_and_kinds_become_a_filter() -> None:
    assert statuses_and_kinds([]) == ((), ())
    assert statuses_and_kinds(["failed"]) == ((Status.FAILED,), ())
    assert statuses_and_kinds(["failed", "retrying"]) == ((Status.PENDING, Status.FAILED), (PendingKind.RETRYING,))
    assert statuses_and_kinds(["pending", "retrying"]) == ((Status.PENDING,), ())
    with pytest.raises(ValueError, match="late"):
        statuses_and_kinds(["late"])
