"""What is decided about fire times: catch-up, overlap, pauses, clocks, and definitions in code."""

from typing import Any

import pytest
from msgspec.structs import replace

from qo.model import NewTask
from qo.model.task import LATEST
from qo.schedules.decision import (
    ACTIVE_FOR,
    DECLARED_FOR,
    MAX_FIRES,
    MAX_RECENT,
    MAX_UNFINISHED,
    created_note,
    decide,
    declared,
    defined,
    is_active,
    paused,
    resumed,
    started_by_hand,
)
from qo.schedules.schedule import NO_ID, Fire, Schedule, ScheduleNote, make_schedule, task_id_of, task_of

START = 1_000_000_040.0  # 40 s before a fire time
MINUTE = 60.0
TASK = NewTask(id=NO_ID, queue="default", type="report")


def schedule(**options: Any) -> Schedule:
    return make_schedule("s", TASK, **{"every": MINUTE} | options)


def note(**options: Any) -> ScheduleNote:
    return created_note(schedule(**options), START, from_code=False)


def outcomes(after: ScheduleNote) -> list[tuple[str, int]]:
    return [(fire.outcome, fire.count) for fire in after.recent]


def unfinished_of(stored: ScheduleNote, running: list[str]) -> set[str]:
    """The running tasks that the note still knows, as a scheduler asks for them."""
    return {fire.task_id for fire in stored.recent} & set(running)


def test_nothing_is_decided_before_the_first_fire_time() -> None:
    assert decide(note(), START + 30) == note()


def test_a_fire_time_is_decided_once() -> None:
    after = decide(note(), START + 61)
    (fire,) = after.pending
    assert (fire.at, fire.task_id) == (START + 40, task_id_of("s", START + 40))
    settled = replace(after, pending=())
    assert decide(settled, START + 62) == settled
    assert decide(after, START + 200) == after  # what is decided is submitted first


@pytest.mark.parametrize(
    ("options", "missed_minutes", "expected"),
    [
        ({"catch_up": "last"}, 10, [("missed", 9), ("fired", 1)]),
        ({"catch_up": "all"}, 3, [("fired", 1)] * 3),
        ({"catch_up": "none"}, 10, [("missed", 9), ("fired", 1)]),  # the last one is on time
        ({"catch_up": "none", "every": 3600.0}, 100, [("missed", 1), ("missed", 1)]),
        ({"catch_up": "last", "every": 3600.0, "catch_up_window": 60.0}, 60, [("missed", 1)]),
        ({"catch_up": "all", "catch_up_window": 120.0}, 10, [("missed", 8), ("fired", 1), ("fired", 1)]),
        ({"catch_up": "all", "every": 2 * 86_400.0, "catch_up_window": 60.0}, 5 * 1440, [("missed", 1)] * 2),
    ],
)
def test_missed_fire_times_are_caught_up_as_chosen(
    options: dict[str, Any], missed_minutes: int, expected: list[tuple[str, int]]
) -> None:
    assert outcomes(decide(note(**options), START + missed_minutes * MINUTE + 1)) == expected


def test_a_long_catch_up_is_done_in_steps_and_leaves_nothing_out() -> None:
    stored, submitted, now = note(catch_up="all"), [], START + 250 * MINUTE
    while (after := decide(stored, now)).pending:
        assert len(after.pending) <= MAX_FIRES and len(after.recent) <= MAX_RECENT
        submitted += [fire.at for fire in after.pending]
        stored = replace(after, pending=())
    assert submitted == [START + 40 + MINUTE * number for number in range(250)]


def test_years_without_a_scheduler_are_decided_in_one_step() -> None:
    after = decide(note(every=1.0), START + 5e8)
    assert outcomes(after) == [("missed", 1000), ("fired", 1)]


def test_an_unfinished_task_lets_the_next_be_skipped_or_replaces_it() -> None:
    skipped = decide(note(overlap="skip"), START + 61, {"old"})
    assert (skipped.pending, skipped.recent[-1].outcome) == ((), "skipped")
    assert skipped.recent[-1].reason == "task old has not finished"
    assert [fire.cancels for fire in decide(note(overlap="cancel"), START + 61, {"old"}).pending] == [("old",)]
    assert [fire.cancels for fire in decide(note(overlap="allow"), START + 61, {"old"}).pending] == [()]


def test_of_several_fire_times_at_once_overlap_leaves_one() -> None:
    first = decide(note(overlap="skip", catch_up="all"), START + 200)
    assert outcomes(first) == [("fired", 1), ("skipped", 1), ("skipped", 1)]
    last = decide(note(overlap="cancel", catch_up="all"), START + 200)
    assert outcomes(last) == [("skipped", 1), ("skipped", 1), ("fired", 1)]


@pytest.mark.parametrize("manual_runs", [0, 1])
def test_a_task_that_never_finishes_lets_all_later_fire_times_be_skipped(manual_runs: int) -> None:
    stored, by_hand = note(overlap="skip"), 0
    fired: list[str] = []
    for number in range(45):
        now = START + 41 + number * MINUTE
        stored = decide(stored, now, unfinished_of(stored, fired))
        fired += [fire.task_id for fire in stored.pending]
        stored = replace(stored, pending=())
        for _ in range(manual_runs):
            by_hand += 1
            stored = replace(
                started_by_hand(stored, f"by hand {by_hand}", now, unfinished_of(stored, fired)), pending=()
            )
    assert len(fired) == 1
    assert len(stored.recent) == MAX_RECENT + 1


def test_a_task_is_remembered_until_it_is_cancelled() -> None:
    stored = replace(decide(note(overlap="cancel"), START + 41), pending=())
    first = stored.recent[0].task_id
    for number in range(MAX_RECENT + 1):
        stored = started_by_hand(stored, f"by hand {number}", START + 42, unfinished_of(stored, [first]))
    (fire,) = decide(replace(stored, pending=()), START + 101, unfinished_of(stored, [first])).pending
    assert fire.cancels == (first,)


def test_a_task_that_is_not_submitted_yet_is_remembered() -> None:
    many = decide(note(overlap="skip", catch_up="all"), START + 50 * MINUTE)
    (fire,) = many.pending
    assert fire in many.recent
    for number in range(MAX_RECENT + 1):
        many = started_by_hand(many, f"by hand {number}", START + 50 * MINUTE)
    assert fire in many.recent


def test_of_too_many_records_of_unfinished_tasks_those_of_manual_runs_go_first() -> None:
    stored, scheduled = note(overlap="skip"), task_id_of("s", START + 40)
    by_hand = [f"by hand {number}" for number in range(300)]
    for task_id in by_hand:
        stored = replace(started_by_hand(stored, task_id, START + 1, {scheduled, *by_hand}), pending=())
        if task_id == by_hand[150]:
            stored = replace(decide(stored, START + 41), pending=())
    assert scheduled in [fire.task_id for fire in stored.recent]
    assert len(stored.recent) == MAX_UNFINISHED + MAX_RECENT


def test_a_pause_is_not_caught_up() -> None:
    stopped = paused(note())
    assert decide(stopped, START + 600) == stopped
    again = resumed(stopped, START + 600)
    assert decide(again, START + 601) == again
    assert len(decide(again, START + 661).pending) == 1
    assert resumed(note(), START + 600) == note()  # it was not paused


def test_a_clock_that_was_set_back_does_not_silence_a_schedule() -> None:
    ahead = replace(note(), decided_until=START + 1e8)
    again = decide(ahead, START)
    assert again.decided_until == START and again.pending == ()
    assert len(decide(again, START + 61).pending) == 1
    slightly = replace(note(), decided_until=START + 50)  # a fire time at + 40 was decided
    assert decide(slightly, START + 41) == slightly


def test_jitter_is_the_same_in_every_process_and_within_its_limit() -> None:
    stored = note(jitter=30.0, catch_up="all")
    fires = decide(stored, START + 20 * MINUTE).pending
    delays = [(task_of(stored.schedule, fire).run_at or 0.0) - fire.at for fire in fires]
    assert delays == [(task_of(stored.schedule, fire).run_at or 0.0) - fire.at for fire in fires]
    assert all(0 <= delay < 30 for delay in delays) and len(set(delays)) > 10


def test_another_timing_begins_now_and_another_argument_does_not() -> None:
    later = START + 600
    assert defined(note(), schedule(every=30.0), later).decided_until == later
    assert defined(note(), replace(schedule(), task=replace(TASK, payload=b"1")), later).decided_until == START


# --- definitions in code

OLD, NEW = schedule(), schedule(every=30.0)


def in_code(definition: Schedule = OLD, by: str = "old") -> ScheduleNote:
    stored = declared(None, definition, START, by=by)
    assert stored is not None and stored.source == "code"
    return stored


def test_a_restarted_worker_of_an_older_deployment_changes_nothing() -> None:
    newer = declared(in_code(), NEW, START + 1, by="new")
    assert newer is not None and newer.schedule == NEW
    assert declared(newer, OLD, START + 2, by="old") == newer


def test_a_deployment_that_is_taken_back_changes_the_definition_back() -> None:
    newer = declared(in_code(), NEW, START + 1, by="new")
    at_once = declared(newer, OLD, START + 2, by="old", is_declarer_live=False)
    later = declared(newer, OLD, START + 2 + DECLARED_FOR, by="old")
    assert [each.schedule for each in (at_once, later) if each] == [OLD, OLD]


def test_a_schedule_that_was_removed_from_the_code_is_inactive_until_it_comes_back() -> None:
    removed = declared(in_code(), None, START + 1, by="new")
    assert removed is not None and removed.removed and not is_active(removed, START + 1)
    assert decide(removed, START + 600) == removed
    assert declared(removed, OLD, START + 2, by="old") == removed
    back = declared(removed, OLD, START + 600, by="newest", is_declarer_live=False)
    assert back is not None and is_active(back, START + 600) and decide(back, START + 601) == back
    assert declared(None, None, START) is None


def test_a_schedule_that_no_worker_declares_is_inactive_after_a_day_and_caught_up_later() -> None:
    stored = in_code()
    assert is_active(stored, START + ACTIVE_FOR) and not is_active(stored, START + ACTIVE_FOR + 1)
    monday = START + 3 * ACTIVE_FOR
    assert decide(stored, monday) == stored
    again = declared(stored, OLD, monday, by="old")
    assert again is not None and [fire.outcome for fire in decide(again, monday).recent] == ["missed", "fired"]


def test_the_same_definition_is_written_again_only_after_a_while() -> None:
    stored = in_code()
    assert declared(stored, OLD, START + 5, by="other") == stored
    assert declared(stored, OLD, START + 5, by="old", is_declarer_live=False) == stored  # it is this worker
    ended = declared(stored, OLD, START + 5, by="other", is_declarer_live=False)
    assert ended is not None and ended.declared_by == "other"
    renewed = declared(stored, OLD, START + 700, by="other")
    assert renewed is not None and renewed.declared_at == START + 700


def test_code_takes_over_a_schedule_that_was_added_at_run_time() -> None:
    assert declared(note(), None, START) == note()
    taken = declared(note(), NEW, START + 5, by="w")
    assert taken is not None and (taken.source, taken.schedule) == ("code", NEW)


def test_a_task_is_not_due_after_the_end_of_the_calendar() -> None:
    schedule = make_schedule("s", TASK, every=60.0, jitter=3600.0)
    fires = [Fire(at=LATEST, outcome="fired", decided_at=0.0, task_id=task_id_of("s", at)) for at in (1.0, 2.0, 3.0)]
    assert {task_of(schedule, fire).run_at for fire in fires} == {LATEST}
