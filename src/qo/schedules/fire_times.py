"""The fire times of a schedule: pure computation, without a clock.

Cron expressions are evaluated by cronsim in local time without a zone. The rules for changes of the clocks are here:

- An expression with fixed hours and minutes ("30 2 * * *") fires once a day. A local time that does not exist fires at
  the first instant after the gap. A local time that exists twice fires the first time.
- An expression whose minutes or hours begin with `*` ("*/15 * * * *") fires whenever the local clock shows a matching
  time, so it keeps its rhythm in elapsed time.

Debian's cron has the same rules.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import takewhile
from math import floor
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from qo.errors import InvalidTask
from qo.model import is_a, show
from qo.model.task import LATEST

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_CRON_FIELDS = 5
_MAX_CRON_LENGTH = 256  # characters
_MAX_ZONE_LENGTH = 64  # characters
_SAMPLE_STEP = 7 * 86_400  # seconds between two samples of an offset; no zone changes it twice within a week
_LONGEST_GAP = 2 * 86_400.0  # seconds; the longest gap so far was a day, at the date line
_LOOK_BACKS = (3600.0, 86_400.0, 32 * 86_400.0, 366 * 86_400.0)  # seconds, to find the last fire time in few steps


class Timing(Protocol):
    """When a schedule fires: by a cron expression in a time zone, or by an interval."""

    @property
    def cron(self) -> str: ...
    @property
    def every(self) -> float: ...
    @property
    def timezone(self) -> str: ...
    @property
    def start_at(self) -> float | None: ...
    @property
    def end_at(self) -> float | None: ...


def check_cron(expression: str) -> str:
    """The expression with an alias replaced. Raises InvalidTask for a wrong one, or for one that never fires."""
    if not is_a(expression, str) or len(expression) > _MAX_CRON_LENGTH:
        raise InvalidTask("cron", f"{show(expression)} is not a cron expression such as '0 3 * * *'")
    text = ALIASES.get(expression.strip().lower(), expression.strip())
    if len(text.split()) != _CRON_FIELDS:
        raise InvalidTask(
            "cron",
            f"{show(expression)} must have five fields: minute, hour, day of the month, month, day of the week; "
            "use every= for intervals in seconds",
        )
    if problem := _problem_of(text):
        raise InvalidTask("cron", f"{show(expression)} {problem}")
    return text


@lru_cache(1024)
def _problem_of(expression: str) -> str:
    """Why an expression cannot be used; empty if it can."""
    try:
        never = next(CronSim(expression, datetime(2000, 1, 1)), None) is None  # noqa: DTZ001 - local time without a zone
    except (CronSimError, AssertionError, ValueError, TypeError) as error:  # cronsim asserts in rare combinations
        return f"is not a cron expression: {str(error) or 'it combines features that do not fit together'}"
    return "matches no date within 50 years" if never else ""


def check_timezone(name: str) -> str:
    """Raises InvalidTask for a name that is not in the database of time zones."""
    if not is_a(name, str) or not name or len(name) > _MAX_ZONE_LENGTH or not _is_zone(name):
        known = "is not a time zone such as 'Europe/Berlin' or 'UTC'"
        raise InvalidTask("timezone", f"{show(name)} {known}; if it is a new one, update the package tzdata")
    return name


@lru_cache(1024)
def _is_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder of the database raises OSError
        return False
    return True


def next_fire(timing: Timing, after: float) -> float | None:
    """The first fire time after `after`; None if there is none."""
    return next(_fires(timing, after), None)


def next_fires(timing: Timing, after: float, count: int) -> list[float]:
    """The first fire times after `after`."""
    return [at for at, _ in zip(_fires(timing, after), range(count), strict=False)]


def fires_between(timing: Timing, after: float, until: float) -> Iterator[float]:
    """The fire times after `after` and not after `until`, in order."""
    return takewhile(lambda at: at <= until, _fires(timing, after))


def last_fire(timing: Timing, after: float, until: float) -> float | None:
    """The last fire time after `after` and not after `until`; None if there is none."""
    for seconds in (*_LOOK_BACKS, until - after):
        since = max(after, until - seconds)
        if since >= until:
            continue
        found = None
        for found in fires_between(timing, since, until):  # noqa: B007 - the last one is used
            pass
        if found is not None or since == after:
            return found
    return None


def _fires(timing: Timing, after: float) -> Iterator[float]:
    """All fire times after `after`, in order."""
    end = LATEST if timing.end_at is None else min(timing.end_at, LATEST)
    if timing.start_at is not None:
        after = max(after, timing.start_at - 0.001)
    try:
        for at in _every(timing, after) if timing.every else _cron(timing.cron, ZoneInfo(timing.timezone), after):
            if at > end:
                return
            yield at
    except (OverflowError, ValueError):  # the end of the calendar
        return


def _every(timing: Timing, after: float) -> Iterator[float]:
    """Multiples of the interval since `start_at` or the epoch, in whole milliseconds, so that no error accumulates."""
    step, origin = round(timing.every * 1000), round((timing.start_at or 0.0) * 1000)
    number = (floor(after * 1000) - origin) // step
    while True:
        number += 1
        yield (origin + number * step) / 1000


def _cron(expression: str, zone: ZoneInfo, after: float) -> Iterator[float]:
    minutes, hours = expression.split()[:2]
    is_fixed = not minutes.startswith("*") and not hours.startswith("*")
    return (_fixed if is_fixed else _elapsed)(expression, zone, after)


def _fixed(expression: str, zone: ZoneInfo, after: float) -> Iterator[float]:
    last = after
    for local in CronSim(expression, datetime.fromtimestamp(after, zone).replace(tzinfo=None)):
        at = _first_instant(local, zone)
        if at > last:  # two local times in a gap fire once
            last = at
            yield at


def _first_instant(local: datetime, zone: ZoneInfo) -> float:
    """The first instant at which local clocks show `local`, or the first after the gap if they never do."""
    at = local.replace(tzinfo=zone, fold=0).timestamp()
    if datetime.fromtimestamp(at, zone).replace(tzinfo=None) == local:
        return at
    return _offset_change(zone, at - _LONGEST_GAP, at) or at


def _elapsed(expression: str, zone: ZoneInfo, after: float) -> Iterator[float]:
    after = float(floor(after))
    offset = _offset(zone, after)
    since = after
    while True:
        local = next(CronSim(expression, _plain(since + offset)), None)
        if local is None:
            return
        at = local.replace(tzinfo=UTC).timestamp() - offset
        change = _offset_change(zone, after, at)
        if change is not None:  # local clocks show other times from here on
            after, since, offset = change, change - 1, _offset(zone, change)
            continue
        yield at
        after = since = at


def _plain(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _offset(zone: ZoneInfo, at: float) -> float:
    offset = datetime.fromtimestamp(at, zone).utcoffset()
    return (offset or timedelta()).total_seconds()


def _offset_change(zone: ZoneInfo, after: float, until: float) -> float | None:
    """The first whole second after `after` and not after `until` at which the zone has another offset."""
    low, end = floor(after), floor(until)
    before = _offset(zone, low)
    high = low
    while high < end and _offset(zone, high) == before:
        low, high = high, min(high + _SAMPLE_STEP, end)
    if _offset(zone, high) == before:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return float(high)
