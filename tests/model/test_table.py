"""The table every engine is tested against, and what holds for it whatever happens."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.errors import BadBatch, Conflict
from qo.model import (
    ANY,
    FINISHED,
    NEW,
    Change,
    CountKey,
    Filter,
    RetryPolicy,
    Status,
    Table,
    Task,
    after_error,
    apply,
    archive,
    cancel,
    claim,
    complete,
    cursor,
    expire,
    fail,
    page_start,
    release,
    renew,
    replay,
)
from tests.model.samples import ID, NOW, described, pending, running, wanted


def name(n: int) -> str:
    return f"{n:08x}-0000-8000-8000-000000000000"


def filled(*news: dict[str, object]) -> Table:
    table = Table()
    table.add([described(**({"id": name(n)} | fields)) for n, fields in enumerate(news)], NOW)
    return table


def test_the_first_task_of_an_id_stands() -> None:
    table = Table()
    assert table.add([described(payload=b"1")], NOW) == [(ID, True)]
    assert table.add([described(payload=b"2")], NOW) == [(ID, False)]
    assert table.tasks[ID].payload == b"1"


def test_a_batch_naming_a_task_twice_changes_nothing() -> None:
    table = filled({})
    for call in (
        lambda: table.add([described(), described()], NOW),
        lambda: table.apply([cancel(name(0)), archive(name(0))], NOW),
        lambda: table.delete([name(0), name(0)]),
    ):
        with pytest.raises(BadBatch):
            call()
    assert table.tasks.keys() == {name(0)}
    assert table.tasks[name(0)].version == 1


def test_claims_go_by_rank_and_stop_at_their_limit() -> None:
    table = filled({"priority": 9}, {"priority": 0}, {"priority": 6}, {"delay": 5.0})
    taken = table.claim(wanted(limit=2), NOW)
    assert [task.id for task in taken] == [name(1), name(2)]
    assert [task.id for task in table.claim(wanted(limit=9), NOW)] == [name(0)]
    assert table.claim(wanted(limit=9), NOW) == []


def test_a_claim_takes_at_most_so_many_of_a_type_and_fills_up_with_others() -> None:
    table = filled({"type": "a"}, {"type": "a"}, {"type": "b"}, {"type": "c"}, {"type": "b"})
    taken = table.claim(wanted(limit=3, per_type_limits={"a": 1, "c": 0}), NOW)
    assert [task.type for task in taken] == ["a", "b", "b"]


def test_repeating_a_claim_gives_what_it_got_and_else_claims() -> None:
    table = filled({}, {}, {})
    first = table.claim(wanted(lease_id="L", limit=2), NOW)
    assert table.claim(wanted(lease_id="L", limit=2, is_repeat=True), NOW + 1) == first
    assert len(table.claim(wanted(lease_id="M", limit=2, is_repeat=True), NOW + 1)) == 1


def test_a_change_to_an_unknown_task_is_refused() -> None:
    assert Table().apply([cancel(ID)], NOW) == [False]


def test_a_lost_race_is_an_answer_and_a_repeat_is_answered_again() -> None:
    table = filled({}, {})
    held, other = table.claim(wanted(limit=2), NOW)
    assert table.apply([complete(held), cancel(other.id)], NOW) == [True, True]
    assert table.apply([complete(held), complete(other)], NOW) == [True, False]
    assert len(table.history(held.id)) == 3


def test_renewals_leave_no_trace_in_the_history() -> None:
    table = filled({})
    (held,) = table.claim(wanted(), NOW)
    assert table.apply([renew(held, 99.0)], NOW + 1) == [True]
    assert [event.status.value for event in table.history(held.id)] == ["pending", "running"]
    assert table.history("unknown") == []


def test_only_finished_tasks_are_deleted_and_their_history_with_them() -> None:
    table = filled({}, {})
    table.apply([cancel(name(0))], NOW)
    assert table.delete([name(0), name(1), name(2)]) == [True, False, False]
    assert table.get([name(1), name(0)]) == [table.tasks[name(1)], None]
    assert table.history(name(0)) == []


def test_pages_are_newest_first_and_meet_without_gap_or_overlap() -> None:
    table = filled(*[{} for _ in range(5)])
    first = table.find(Filter(), 3, None, NOW)
    rest = table.find(Filter(), 3, page_start(cursor(first[-1]), None), NOW)
    assert [task.id for task in (*first, *rest)] == [name(n) for n in (4, 3, 2, 1, 0)]
    assert table.find(Filter(queues=("x",)), 3, None, NOW) == []


def test_counts_are_by_queue_type_and_status() -> None:
    table = filled({}, {}, {"queue": "x"})
    table.apply([cancel(name(0))], NOW)
    assert table.count() == {
        CountKey("q", "t", Status.CANCELLED): 1,
        CountKey("q", "t", Status.PENDING): 1,
        CountKey("x", "t", Status.PENDING): 1,
    }


def test_a_note_is_written_only_over_the_version_that_was_read() -> None:
    table = Table()
    first = table.write_note("a/x", b"1", NEW)
    for stale in (NEW, "no version of ours"):
        with pytest.raises(Conflict, match="a/x"):
            table.write_note("a/x", b"2", stale)
    second = table.write_note("a/x", b"2", first)
    assert table.read_note("a/x") == ("a/x", b"2", second)
    assert table.write_note("a/x", b"3", ANY) not in {first, second}
    table.write_note("b", b"", ANY)
    assert [note.name for note in table.notes("a/")] == ["a/x"]
    table.drop_note("a/x")
    table.drop_note("a/x")
    assert table.read_note("a/x") is None


# --- whatever happens

MAKE: dict[str, Callable[[Task], Change]] = {
    "renew": lambda seen: renew(seen, 30.0),
    "complete": complete,
    "release": release,
    "error": lambda seen: after_error(seen, "e", random=0.5),
    "fail": lambda seen: fail(seen, "e"),
    "expire": lambda seen: expire(seen, random=0.5, grace=1.0),
    "cancel": lambda seen: cancel(seen.id),
    "replay": lambda seen: replay(seen.id),
    "archive": lambda seen: archive(seen.id),
}
steps = st.lists(
    st.tuples(
        st.sampled_from(["claim", "claim", *MAKE]),
        st.integers(0, 3),  # which of the leases seen so far
        st.sampled_from([0.0, 1.0, 40.0]),  # seconds that pass
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(steps, st.integers(0, 3), st.sampled_from([0.0, 200.0, float("inf")]))
def test_random_lives_keep_every_invariant(lived: list[tuple[str, int, float]], retries: int, ageing: float) -> None:
    task, now = pending(max_retries=retries, ageing=ageing, retry=RetryPolicy(max=3.0), priority=5), NOW
    head_start = task.rank - task.available_at
    seen = [task]
    for n, (kind, which, passed) in enumerate(lived):
        now += passed
        before = task
        if kind == "claim":
            if before.status is Status.PENDING:
                task = claim(before, wanted(lease_id=f"lease-{n}"), now)
                seen.append(task)
        else:
            change = MAKE[kind](seen[-1 - which % len(seen)])
            task = apply(before, change, now) or before
            _check_step(before, task, change)
        assert task is before or task.version == before.version + 1
        assert (task.status in FINISHED) is (task.completed_at is not None)
        assert (task.status is Status.RUNNING) is (task.lease_expires_at is not None)
        assert task.failures <= task.attempt
        assert task.attempt >= before.attempt
        assert abs(task.rank - task.available_at - head_start) < 1e-5
        assert task.status is not Status.PENDING or (task.worker_id, task.started_at) == (None, None)


def _check_step(before: Task, after: Task, change: Change) -> None:
    if after is before:
        return
    if before.status in FINISHED and after.status not in FINISHED:
        assert change == replay(before.id), "only a replay brings a finished task back"
    if before.status is Status.RUNNING and change.lease_id is not None:
        assert change.lease_id == before.lease_id, "only the lease that is held can settle"


@given(st.sampled_from(["renew", "complete", "release", "error", "fail", "expire"]), st.sampled_from(list(Status)))
def test_a_foreign_lease_changes_nothing_in_any_status(kind: str, status: Status) -> None:
    stored = replace(running(), status=status, lease_id="another")
    assert apply(stored, MAKE[kind](running()), NOW + 1e6) is None


def test_the_next_task_under_a_key_is_made_once_however_often_it_is_submitted() -> None:
    table, next_id = Table(), ID.replace("0", "1")
    submission = described(idempotency_key="k", window=10.0, next_id=next_id)
    assert table.add([submission], NOW) == [(ID, True)]
    for at, is_new in ((NOW + 10, True), (NOW + 11, False), (NOW + 20, False)):
        table.apply([cancel(ID)], at)
        assert table.add([submission], at) == [(next_id, is_new)]
        table.apply([cancel(next_id)], at)
    assert table.delete([next_id]) == [True]
    assert table.add([replace(submission, next_id=ID.replace("0", "2"))], NOW + 20) == [(ID.replace("0", "2"), True)]
