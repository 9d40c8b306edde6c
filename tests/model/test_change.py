"""Guards, fences and repeats: who may change a task, and what the change leaves behind."""

import pytest
from msgspec.structs import replace

from qo.model import (
    Change,
    Guard,
    RetryPolicy,
    Status,
    Task,
    after_error,
    allows,
    apply,
    archive,
    cancel,
    claim,
    complete,
    expire,
    fail,
    is_due,
    is_repeat,
    lost_its_process,
    release,
    renew,
    replay,
    retry_now,
    set_apart,
    withdraw,
)
from tests.model.samples import ID, NOW, pending, running, wanted


def done(task: Task, change: Change, now: float = NOW) -> Task:
    changed = apply(task, change, now)
    assert changed is not None
    return changed


def settlements(task: Task) -> list[Change]:
    return [
        renew(task, 60.0),
        complete(task),
        release(task),
        after_error(task, "e", random=0.5),
        fail(task, "e"),
    ]


def test_a_task_is_due_when_it_is_pending_and_its_time_has_come() -> None:
    waiting = pending(delay=5.0)
    assert [is_due(waiting, NOW + late) for late in (0.0, 4.999, 5.0, 6.0)] == [False, False, True, True]
    assert not is_due(running(), NOW + 1_000)


def test_a_claim_writes_a_lease_and_counts_the_attempt() -> None:
    task = claim(pending(), wanted(lease=30.0), NOW + 1)
    assert (task.status, task.attempt, task.lease_id, task.worker_id) == (Status.RUNNING, 1, "lease-1", "w1")
    assert (task.started_at, task.updated_at, task.lease_expires_at, task.version) == (NOW + 1, NOW + 1, NOW + 31, 2)


def test_a_late_worker_cannot_settle_or_extend_anothers_attempt() -> None:
    late = running()
    handed_back = done(late, expire(late, random=0.5, grace=0.0), NOW + 30)
    newer = claim(handed_back, wanted(worker_id="w2", lease_id="lease-2"), NOW + 60)
    for change in (*settlements(late), expire(late, random=0.5, grace=0.0)):
        assert apply(newer, change, NOW + 1_000) is None
        assert not is_repeat(newer, change)
    assert done(newer, complete(newer)).status is Status.COMPLETED


def test_the_holder_may_settle_an_expired_lease_that_was_not_taken_over() -> None:
    task = running()
    assert done(task, complete(task, b"1"), NOW + 10_000).result == b"1"


def test_a_lease_expires_when_it_ran_out_grace_seconds_ago_and_not_before() -> None:
    task = running()  # until NOW + 30
    change = expire(task, random=0.5, grace=5.0)
    assert apply(task, change, NOW + 34.9) is None
    assert done(task, change, NOW + 35).status is Status.PENDING


def test_a_renewal_just_in_time_keeps_the_task() -> None:
    task = running()
    renewed = done(task, renew(task, 30.0), NOW + 29)
    assert renewed.lease_expires_at == NOW + 59
    assert apply(renewed, expire(task, random=0.5, grace=0.0), NOW + 31) is None


def test_a_running_task_without_an_expiry_counts_as_expired() -> None:
    task = replace(running(), lease_expires_at=None)
    assert allows(task, expire(task, random=0.5, grace=0.0), NOW)


def test_an_expired_lease_is_a_failure_that_names_the_worker() -> None:
    task = running(max_retries=1)
    change = expire(task, random=0.5, grace=2.0)
    assert (change.guard, change.grace, change.failures, change.to) == (Guard.EXPIRED, 2.0, 1, Status.PENDING)
    assert change.error == "lost: worker w1 let the lease of attempt 1 expire"
    assert change.delay == task.retry.delay(1, 0.5)


def test_a_task_that_kills_its_workers_ends() -> None:
    task, now = pending(max_retries=3), NOW
    for attempt in range(1, 5):
        task = claim(task, wanted(lease_id=f"lease-{attempt}"), now)
        now += 1_000
        task = done(task, expire(task, random=0.5, grace=0.0), now)
    assert (task.status, task.failures, task.attempt, task.completed_at) == (Status.FAILED, 4, 4, now)


def test_a_worker_finds_its_lease_gone_after_a_cancellation() -> None:
    task = running()
    cancelled = done(task, cancel(task.id))
    assert [apply(cancelled, change, NOW) for change in settlements(task)] == [None] * 5


def test_a_settlement_repeated_under_its_lease_is_recognised() -> None:
    task = running(max_retries=3)
    for change in (complete(task), release(task), after_error(task, "e", random=0.5), fail(task, "e")):
        settled = done(task, change)
        assert apply(settled, change, NOW) is None
        assert is_repeat(settled, change)


def test_another_settlement_under_the_same_lease_is_not_a_repeat() -> None:
    task = running()
    completed = done(task, complete(task))
    assert not any(is_repeat(completed, change) for change in (fail(task, "e"), release(task), renew(task, 1.0)))


def test_only_a_settlement_by_the_holder_can_be_a_repeat() -> None:
    task = running()
    assert not is_repeat(done(task, cancel(task.id)), cancel(task.id))
    expired = expire(task, random=0.5, grace=0.0)
    assert not is_repeat(done(task, expired, NOW + 99), expired)


def test_a_task_that_was_never_claimed_has_no_settlement_to_repeat() -> None:
    task = pending()
    for change in settlements(task):
        assert apply(task, change, NOW) is None
        assert not is_repeat(task, change)


def test_completing_keeps_the_result_and_forgets_the_error() -> None:
    task = replace(running(), error="earlier", failures=1)
    completed = done(task, complete(task, b'"r"'), NOW + 2)
    assert (completed.result, completed.error, completed.completed_at) == (b'"r"', None, NOW + 2)
    assert (completed.lease_expires_at, completed.worker_id, completed.failures) == (None, "w1", 1)
    assert (completed.version, completed.started_at) == (3, NOW)


def test_a_retry_comes_after_the_back_off_with_its_error_and_no_worker() -> None:
    task = running()
    again = done(task, after_error(task, "boom", random=0.5), NOW + 2)
    assert (again.status, again.failures, again.error, again.available_at) == (Status.PENDING, 1, "boom", NOW + 3)
    assert (again.worker_id, again.started_at, again.lease_expires_at, again.completed_at) == (None,) * 4
    assert again.attempt == 1


def test_giving_up_counts_the_last_failure_too() -> None:
    task = running(max_retries=0)
    failed = done(task, after_error(task, "boom", random=0.5))
    assert (failed.status, failed.failures, failed.error) == (Status.FAILED, 1, "boom")


def test_a_permanent_failure_leaves_its_retries_unused() -> None:
    task = running(max_retries=9)
    assert done(task, fail(task, "never")).status is Status.FAILED


def test_handing_a_task_back_costs_no_retry() -> None:
    task = running(max_retries=0)
    released = done(task, release(task, 3.0))
    assert (released.status, released.failures, released.available_at) == (Status.PENDING, 0, NOW + 3)


def test_a_task_set_apart_costs_no_retry_and_is_a_suspect() -> None:
    task = running(max_retries=0)
    apart = done(task, set_apart(task, "its worker died"))
    assert (apart.status, apart.failures, apart.error) == (Status.PENDING, 0, "lost: its worker died")
    assert lost_its_process(apart)
    assert not lost_its_process(task)


def test_a_replayed_task_is_due_immediately() -> None:
    task = running(max_retries=0)
    failed = done(task, fail(task, "boom"), NOW + 1)
    again = done(failed, replay(task.id), NOW + 50)
    assert (again.status, again.failures, again.available_at) == (Status.PENDING, 0, NOW + 50)
    assert (again.completed_at, again.attempt) == (None, 1)
    assert again.error == "boom"  # what went wrong is still to be read until it goes right


def test_a_replayed_task_has_no_result_and_the_time_it_had_at_first() -> None:
    task = replace(running(max_retries=9, timeout=10.0, retry=RetryPolicy(timeout_growth=2.0)), failures=3)
    completed = done(task, complete(task, b"1"), NOW + 1)
    again = done(done(completed, archive(task.id), NOW + 9), replay(task.id), NOW + 10)
    assert (task.time_limit, again.time_limit, again.timeout, again.result) == (80, 10, 10, None)


def test_what_does_not_move_a_task_in_time_keeps_its_rank() -> None:
    task = replace(running(), available_at=1662533607.7011547, rank=228245269.27348986)
    assert task.rank - task.available_at + task.available_at != task.rank  # so it must not be worked out again
    assert done(task, complete(task)).rank == done(task, cancel(task.id)).rank == task.rank


def test_a_wait_for_a_retry_can_be_cut_short_until_a_worker_has_the_task() -> None:
    waiting = replace(pending(), failures=2, available_at=NOW + 60, rank=NOW + 60 + 6 * 200)
    again = apply(waiting, retry_now(ID), NOW + 5)
    assert again is not None
    assert (again.status, again.failures, again.available_at, again.rank) == (Status.PENDING, 0, NOW + 5, NOW + 1205)
    withdrawn = apply(waiting, withdraw(ID), NOW + 5)
    assert withdrawn is not None and withdrawn.status is Status.CANCELLED
    assert apply(running(), retry_now(ID), NOW) is None and apply(running(), withdraw(ID), NOW) is None


def test_archiving_keeps_when_the_task_ended() -> None:
    task = running()
    completed = done(task, complete(task, b"1"), NOW + 1)
    archived = done(completed, archive(task.id), NOW + 9)
    assert (archived.completed_at, archived.updated_at, archived.result) == (NOW + 1, NOW + 9, b"1")


@pytest.mark.parametrize(("after", "delay"), [(7.5, 7.5), (0, 0), (-3, 0), (float("nan"), 0), (float("inf"), 3.2e9)])
def test_a_handler_may_say_when_to_come_back_within_reason(after: float, delay: float) -> None:
    assert after_error(running(), "later", random=0.5, after=after).delay == delay


def test_the_text_of_an_error_is_something_a_store_can_keep() -> None:
    task = running(max_retries=1)
    for change in (fail(task, "\ud800" + "é" * 20_000), after_error(task, "\ud800" + "é" * 20_000, random=0.5)):
        assert change.error is not None
        assert change.error.startswith("?é")
        assert len(change.error.encode()) in {16 * 1024, 16 * 1024 - 1}


def test_a_task_is_a_suspect_once_an_attempt_ended_with_its_process() -> None:
    task = running()
    later = (task.lease_expires_at or 0.0) + 1
    assert not lost_its_process(task)
    assert lost_its_process(done(task, expire(task, random=0.5, grace=0.0), later))
    assert not lost_its_process(done(task, after_error(task, "boom", random=0.5)))
