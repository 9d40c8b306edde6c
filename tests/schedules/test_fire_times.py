"""Fire times, with the changes of clocks in four zones."""

from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from qo.errors import InvalidTask
from qo.model import NewTask
from qo.model.task import LATEST
from qo.schedules.fire_times import fires_between, last_fire, next_fire, next_fires
from qo.schedules.schedule import NO_ID, Schedule, check_schedule

TASK = NewTask(id=NO_ID, queue="default", type="report")


def cron(expression: str, zone: str = "UTC") -> Schedule:
    return check_schedule(Schedule(name="s", task=TASK, cron=expression, timezone=zone))


def every(seconds: float, **options: Any) -> Schedule:
    return check_schedule(Schedule(name="s", task=TASK, every=seconds, **options))


def at(zone: str, *when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo(zone)).timestamp()  # type: ignore[misc, arg-type]


def local(zone: str, instants: list[float]) -> list[str]:
    return [datetime.fromtimestamp(instant, ZoneInfo(zone)).strftime("%d %H:%M%z") for instant in instants]


@pytest.mark.parametrize(
    ("zone", "since", "expression", "expected"),
    [
        # The clocks go forward: a time that does not exist fires at the first instant after the gap.
        ("Europe/Berlin", (2026, 3, 28, 12), "30 2 * * *", ["29 03:00+0200", "30 02:30+0200"]),
        ("Europe/Berlin", (2026, 3, 28, 12), "0,30 2 * * *", ["29 03:00+0200", "30 02:00+0200"]),
        ("Europe/Berlin", (2026, 3, 28, 12), "0 2,3 * * *", ["29 03:00+0200", "30 02:00+0200"]),
        ("America/New_York", (2026, 3, 7, 12), "15 2 * * *", ["08 03:00-0400", "09 02:15-0400"]),
        ("Australia/Lord_Howe", (2026, 10, 3, 12), "15 2 * * *", ["04 02:30+1100", "05 02:15+1100"]),
        # The clocks go back: a time that exists twice fires the first time.
        ("Europe/Berlin", (2026, 10, 24, 12), "30 2 * * *", ["25 02:30+0200", "26 02:30+0100"]),
        ("America/New_York", (2026, 10, 31, 12), "30 1 * * *", ["01 01:30-0400", "02 01:30-0500"]),
        ("Australia/Lord_Howe", (2026, 4, 4, 12), "45 1 * * *", ["05 01:45+1100", "06 01:45+1030"]),
        # Expressions that begin with * keep their rhythm in elapsed time.
        ("Europe/Berlin", (2026, 3, 29, 1), "*/30 * * * *", ["29 01:30+0100", "29 03:00+0200", "29 03:30+0200"]),
        ("Europe/Berlin", (2026, 10, 25, 2), "30 * * * *", ["25 02:30+0200", "25 02:30+0100", "25 03:30+0100"]),
        ("Australia/Lord_Howe", (2026, 4, 5, 1), "45 * * * *", ["05 01:45+1100", "05 01:45+1030", "05 02:45+1030"]),
        ("Australia/Lord_Howe", (2026, 10, 4, 1), "30 * * * *", ["04 01:30+1030", "04 02:30+1100", "04 03:30+1100"]),
        # Samoa crossed the date line: its 30 December 2011 does not exist. Turkey keeps its summer time since 2016.
        ("Pacific/Apia", (2011, 12, 29, 12), "0 3 * * *", ["31 00:00+1400", "31 03:00+1400", "01 03:00+1400"]),
        ("Europe/Istanbul", (2016, 10, 29, 12), "0 3 * * *", ["30 03:00+0300", "31 03:00+0300"]),
    ],
)
def test_fire_times_where_the_clocks_change(
    zone: str, since: tuple[int, ...], expression: str, expected: list[str]
) -> None:
    assert local(zone, next_fires(cron(expression, zone), at(zone, *since), len(expected))) == expected


def test_a_schedule_read_in_the_second_of_two_equal_hours_does_not_fire_again() -> None:
    second = datetime(2026, 10, 25, 2, 15, tzinfo=ZoneInfo("Europe/Berlin"), fold=1).timestamp()
    assert local("Europe/Berlin", next_fires(cron("30 2 * * *", "Europe/Berlin"), second, 1)) == ["26 02:30+0100"]


ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"]


@settings(max_examples=25, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    expression=st.sampled_from(["*/7 * * * *", "30 * * * *", "15 */5 * * *", "30 2 * * *", "0 0 1 * *", "5 1 * * 1-5"]),
    since=st.floats(at("UTC", 2020, 1, 1), at("UTC", 2030, 1, 1)),
)
def test_fire_times_grow_and_do_not_depend_on_where_one_begins(zone: str, expression: str, since: float) -> None:
    schedule = cron(expression, zone)
    found = next_fires(schedule, since, 20)
    assert len(found) == 20 and found[0] > since
    assert all(one < other for one, other in pairwise(found))
    assert next_fires(schedule, found[9], 10) == found[10:]
    assert next_fires(schedule, found[9] - 0.5, 1) == [found[9]]
    assert last_fire(schedule, since, found[14] + 1) == found[14]
    assert list(fires_between(schedule, since, found[4])) == found[:5]


def test_an_interval_does_not_drift() -> None:
    schedule = every(0.1 + 1.2, start_at=1000.0)  # 1.3 s is no exact binary fraction
    times = next_fires(schedule, 0.0, 100_001)
    assert times[0] == 1000.0 and times[100_000] == 1000.0 + 130_000.0
    assert next_fire(schedule, times[500]) == times[501]
    assert next_fires(every(300), at("UTC", 2026, 1, 1) + 1, 1) == [at("UTC", 2026, 1, 1, 0, 5)]


def test_a_schedule_fires_only_between_its_start_and_its_end() -> None:
    schedule = every(60, start_at=600.0, end_at=720.0)
    assert next_fires(schedule, 0.0, 9) == [600.0, 660.0, 720.0]
    assert next_fire(schedule, 720.0) is None
    assert last_fire(schedule, 0.0, 1e9) == 720.0
    assert last_fire(schedule, 720.0, 720.0) is None


def test_the_end_of_the_calendar_is_the_end_of_a_schedule() -> None:
    assert next_fire(cron("* * * * *"), 253_402_300_790.0) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cron": "61 * * * *"}, "cron: '61 [*] [*] [*] [*]' is not a cron expression: Bad minute"),
        ({"cron": "* * * * * *"}, "cron: .* must have five fields"),
        ({"cron": "0 0 31 2 *"}, "cron: .*Bad day"),
        ({"cron": "0 0 */20 * 1L"}, "cron: .* matches no date within 50 years"),
        ({"cron": "0 0 * * MON#1/2"}, "cron: .* is not a cron expression"),
        ({"cron": "9" * 300}, "cron: .* is not a cron expression such as '0 3"),
        ({"cron": "1" * 200 + " * * * *"}, "cron"),
        ({}, "cron: pass a cron expression, or every=, and not both"),
        ({"cron": "* * * * *", "every": 5.0}, "cron: pass a cron expression, or every=, and not both"),
        ({"every": 0.5}, "every: 0.5 must be at least 1 second"),
        ({"every": float("nan")}, "every: nan is not a finite number"),
        ({"cron": "* * * * *", "timezone": "Europe/Atlantis"}, "timezone: 'Europe/Atlantis' is not a time zone"),
        ({"cron": "* * * * *", "timezone": "../../etc/passwd"}, "timezone: .* is not a time zone"),
        ({"cron": "* * * * *", "timezone": "Europe"}, "timezone: 'Europe' is not a time zone"),
        ({"every": 5.0, "jitter": -1.0}, "jitter: -1.0 must be at least 0"),
        ({"every": 5.0, "catch_up": "some"}, "catch_up: 'some' is not one of: none, last, all"),
        ({"every": 5.0, "catch_up_window": 0.0}, "catch_up_window: 0.0 must be greater than 0"),
        ({"every": 5.0, "overlap": "queue"}, "overlap: 'queue' is not one of: allow, skip, cancel"),
        ({"every": 5.0, "start_at": 9.0, "end_at": 8.0}, "end_at: must not be before start_at"),
        ({"every": 5.0, "start_at": 1e15}, "start_at: .* must be at least 0 and at most"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidTask, match=says):
        check_schedule(Schedule(name="s", task=TASK, **options))


def test_names_for_common_expressions_are_accepted() -> None:
    assert cron("@daily").cron == "0 0 * * *"
    assert cron(" 0  3 * * mon ").cron == "0  3 * * mon"


@pytest.mark.parametrize(
    "timing",
    [
        every(3600, start_at=LATEST),
        replace(cron("* * * * *"), start_at=LATEST - 59),
        cron("59 23 31 12 *", "Etc/GMT+12"),
    ],
)
def test_no_fire_time_is_after_the_end_of_the_calendar(timing: Schedule) -> None:
    assert all(instant <= LATEST for instant in next_fires(timing, LATEST - 86_400, 5))


def test_an_interval_fires_until_the_end_of_the_calendar() -> None:
    assert next_fires(every(3600, start_at=LATEST), 0, 5) == [LATEST]
