"""Parameter types: durations, lists of names, shards, statuses."""

import math
import re
from collections.abc import Callable
from typing import Any

import click

from qo.errors import InvalidTask
from qo.model import LEVELS, Status, check_name, check_type

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|[smhdw]?)")
_HEX = "0123456789abcdef"
_SHARD_RANGE = re.compile(r"([0-9a-f])(?:-([0-9a-f]))?")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Seconds, or a number with a unit: 90, 90s, 5m, 2h, 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        found = _DURATION.fullmatch(str(value).strip().lower())
        seconds = float(found[1]) * _UNITS[found[2]] if found else math.inf
        if not math.isfinite(seconds):
            self.fail(f"{value!r:.80} is not a duration such as 90, 90s, 5m, 2h or 7d.", param, ctx)
        return seconds


class Names(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Names separated by commas."""

    name = "names"

    def __init__(self, field: str, check: Callable[[str, str], str] = check_name) -> None:
        self._field, self._check = field, check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        given = [name for part in str(value).split(",") if (name := part.strip())]
        try:
            return tuple(self._check(self._field, name) for name in given)
        except InvalidTask as error:
            self.fail(f"{error}.", param, ctx)


TYPES = Names("type", check_type)


class Shards(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """First digits of ids: one, a list or a range, such as 0, 0,8,f or 0-7."""

    name = "0-f"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[str]:
        if isinstance(value, frozenset):
            return value
        digits: set[str] = set()
        for part in str(value).lower().split(","):
            found = _SHARD_RANGE.fullmatch(part.strip())
            if found is None:
                self.fail(f"{value!r:.80} is not a hexadecimal digit, a list (0,8,f) or a range (0-7).", param, ctx)
            first, last = _HEX.index(found[1]), _HEX.index(found[2] or found[1])
            digits.update(_HEX[first : last + 1])
        return frozenset(digits)


DURATION = Duration()
STATUS = click.Choice([status.value for status in Status], case_sensitive=False)
PRIORITIES = ", ".join(f"{name} = {level}" for name, level in LEVELS.items())


def flatten(lists: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The values of a repeatable list option as one list, without duplicates."""
    return tuple(dict.fromkeys(name for names in lists for name in names))


def unique(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Ids in lower case, without duplicates."""
    return tuple(dict.fromkeys(task_id.strip().lower() for task_id in ids))
