"""What a task is when it is new, and when a key makes room for another."""

import pytest
from msgspec.structs import replace

from qo.ids import new_id
from qo.model import (
    FINISHED,
    UNFINISHED,
    WINDOW,
    RetryPolicy,
    Status,
    Table,
    Task,
    admit,
    check_id,
    created,
    derived_id,
    event_of,
)
from qo.model.task import stamps
from tests.model.samples import NOW, described, pending, running


def test_a_new_task_is_what_its_producer_described() -> None:
    policy = RetryPolicy(initial=3)
    new = described(payload=b"1", priority=2, needs=("gpu",), timeout=5.0, max_retries=7, retry=policy, delay=4.0,
                    idempotency_key="k", trace_id="tr")  # fmt: skip
    task = created(new, NOW)
    for field in ("id", "queue", "type", "payload", "priority", "needs", "timeout", "max_retries", "retry"):
        assert getattr(task, field) == getattr(new, field)
    assert (task.status, task.attempt, task.failures, task.version) == (Status.PENDING, 0, 0, 1)
    assert (task.created_at, task.available_at, task.rank) == (NOW, NOW + 4, NOW + 4 + 2 * 200)
    assert (task.idempotency_key, task.trace_id) == ("k", "tr")


def test_an_instant_goes_before_a_delay() -> None:
    assert pending(run_at=NOW + 9, delay=4.0).available_at == NOW + 9


def test_every_status_is_either_finished_or_not() -> None:
    assert set(Status) == FINISHED | UNFINISHED
    assert not FINISHED & UNFINISHED


def test_a_batch_keeps_its_order_and_its_last_task_is_stamped_now() -> None:
    instants = stamps(NOW, 4)
    assert instants == sorted(set(instants))
    assert instants[-1] == NOW
    assert stamps(NOW, 0) == []


def test_the_lease_id_is_not_shown_when_a_task_is_printed() -> None:
    task = running()
    assert task.lease_id is not None
    assert task.lease_id not in repr(task)
    assert task.id in repr(task)


def test_an_event_contains_the_new_status_of_the_task() -> None:
    task = running()
    event = event_of(task)
    assert (event.status, event.at, event.version, event.attempt) == (Status.RUNNING, NOW, 2, 1)
    assert (event.worker_id, event.failures, event.error, event.available_at) == ("w1", 0, None, NOW)
    assert "lease_id" not in event.__struct_fields__


# --- idempotency

NEXT = "0b0b0b0b-0000-8000-8000-000000000000"


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_another_task_follows_a_finished_one_when_its_keys_window_is_over(status: Status) -> None:
    existing = _ended(status)
    again = described(idempotency_key="k", payload=b"2", next_id=NEXT)
    assert admit(existing, again, NOW + WINDOW - 0.001) is None
    task = admit(existing, again, NOW + WINDOW)
    assert task is not None
    assert (task.payload, task.status, task.created_at) == (b"2", Status.PENDING, NOW + WINDOW)
    assert (task.id, task.version, task.idempotency_key) == (NEXT, 1, "k")
    assert admit(existing, replace(again, next_id=None), NOW + WINDOW) is None


@pytest.mark.parametrize("status", sorted(UNFINISHED))
def test_an_unfinished_task_stands_however_old_its_key(status: Status) -> None:
    existing = running(idempotency_key="k") if status is Status.RUNNING else pending(idempotency_key="k")
    assert admit(existing, described(idempotency_key="k"), NOW + 100 * WINDOW) is None


def test_without_a_key_an_id_is_never_used_again() -> None:
    assert admit(_ended(Status.COMPLETED), described(), NOW + 100 * WINDOW) is None


def test_an_endless_window_never_makes_room() -> None:
    new = described(idempotency_key="k", window=float("inf"))
    assert admit(_ended(Status.COMPLETED), new, NOW + 1e9) is None


def test_tasks_that_share_an_instant_are_ranked_in_the_order_of_their_batch() -> None:
    table, at = Table(), NOW + 60
    news = [described(id=f"{n:08x}-0000-8000-8000-000000000000", run_at=at) for n in (5, 3, 9, 1)]
    table.add(news, NOW)
    tasks = [table.tasks[new.id] for new in news]
    assert [task.available_at for task in tasks] == [task.due_at for task in tasks] == [at] * 4
    ranks = [task.rank for task in tasks]
    assert ranks == sorted(set(ranks)) and ranks[-1] == created(news[-1], NOW).rank
    early = created(described(run_at=NOW - 60), NOW, lead=1.0)
    assert early.rank == created(described(), NOW).rank  # it waits from its creation on, which tells it apart already


def test_the_first_submission_is_admitted() -> None:
    assert admit(None, described(), NOW) == pending()


def _ended(status: Status) -> Task:
    return replace(running(), status=status, completed_at=NOW)


def test_a_derived_id_is_a_uuid_and_always_the_same() -> None:
    assert check_id(derived_id("q", "t", "k")) == derived_id("q", "t", "k")
    assert derived_id("q", "t", "k")[14] == "8"
    assert {derived_id("q", "t", str(n))[19] for n in range(100)} == set("89ab")
    assert len({derived_id("q", "t", str(n))[0] for n in range(300)}) == 16  # spread over all shards


def test_queue_type_and_key_do_not_run_into_each_other() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("abc", ""), ("", "abc"), ("a", "b:c"), ("a:b", "c"), ("1", ":a"), ("1:", "a")]
    names = [("t", *pair) for pair in pairs] + [(*pair, "k") for pair in pairs] + [("a", "t", "bc"), ("at", "b", "c")]
    assert len({derived_id(*each) for each in names}) == len(names)


def test_a_key_that_is_not_unicode_is_left_for_the_check_to_refuse() -> None:
    assert check_id(derived_id("q", "t", "\ud800"))


def test_chosen_and_derived_ids_look_alike() -> None:
    assert [check_id(made)[14] for made in (new_id(), derived_id("q", "t", "k"))] == ["8", "8"]


def test_a_task_that_a_worker_holds_and_has_not_started_is_claimed_only() -> None:
    held = replace(running(), started_at=None)
    assert held.is_claimed_only
    assert not replace(held, started_at=1.0).is_claimed_only
    assert not replace(held, status=Status.PENDING).is_claimed_only
