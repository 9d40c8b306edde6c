"""The options of a monitor, for `qo monitor`, `qo worker` and `qo serve`."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qo.cli.context import DURATION, option
from qo.monitor.settings import MonitorSettings

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULTS = MonitorSettings()
_PREFIX = "QO_MONITOR_"
_FIELDS = {"expiry_grace": "grace"}  # --grace is the worker's
_RETENTION = (
    "Archive finished tasks after this time and delete them after twice this time; 0 keeps them. Without this option "
    "they are kept, except in the bucket layouts one, sqlite and log, which keep the newest 1,000 for a day."
)
OPTIONS: "tuple[tuple[str, click.ParamType[Any], str], ...]" = (
    (
        "check_interval",
        DURATION,
        "Interval between checks for expired leases and dead workers; in a worker process at most half its lease.",
    ),
    ("worker_health_threshold", DURATION, "Time without a heartbeat after which a worker counts as dead."),
    ("sweep_interval", DURATION, "Interval between retention runs; 0 disables them."),
    ("sweep_page_size", click.IntRange(1, 10_000), "Tasks read in one call of the store."),
    ("retention", DURATION, _RETENTION),
    (
        "failed_retention",
        DURATION,
        "Delete failed tasks after this time; 0 keeps them.",
    ),
    ("expiry_grace", DURATION, "Time after the expiry of a lease before its task is retried."),
)


def monitor_options(function: Function) -> Function:
    return monitor_options_with()(function)


def monitor_options_with(**defaults: float) -> Callable[[Function], Function]:
    """The options of a monitor, with some other defaults."""
    return lambda function: _with_options(function, defaults)


def _with_options(function: Function, defaults: dict[str, float]) -> Function:
    for name, kind, text in reversed(OPTIONS):
        flag = f"--{name.replace('_', '-')}"
        default = defaults.get(name, getattr(DEFAULTS, _FIELDS.get(name, name)))
        shown = f"{text}  [default: as --retention]" if name == "failed_retention" and default is None else text
        function = option(flag, type=kind, default=default, var=_PREFIX + name.upper(), help=shown)(function)
    return function


def monitor_settings(given: dict[str, Any]) -> MonitorSettings:
    if given["check_interval"] <= 0:
        raise click.BadParameter("must be greater than 0.", param_hint="--check-interval")
    return MonitorSettings(**{_FIELDS.get(name, name): given[name] for name, _, _ in OPTIONS})
