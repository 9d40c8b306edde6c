"""The options of a monitor, whether it runs alone or beside a worker."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qo.cli.context import option
from qo.cli.params import DURATION
from qo.monitor.settings import MonitorSettings

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULTS = MonitorSettings()
_PREFIX = "QO_MONITOR_"
_FIELDS = {"expiry_grace": "grace"}  # a worker has a grace of another kind
_RETENTION = (
    "Archive finished tasks after this, delete them after twice this; 0 keeps them, as without this option "
    "(but the bucket layouts one and sqlite keep them for a day, and only the newest 1000)."
)
OPTIONS: "tuple[tuple[str, click.ParamType[Any], str], ...]" = (
    (
        "check_interval",
        DURATION,
        "Between two looks for expired leases and silent workers; beside a worker at most half its lease.",
    ),
    ("worker_health_threshold", DURATION, "Silence after which a worker is taken for dead."),
    ("sweep_interval", DURATION, "Between two tidyings of old tasks; 0 is never."),
    ("sweep_page_size", click.IntRange(1, 10_000), "Tasks looked at in one trip to the store."),
    ("retention", DURATION, _RETENTION),
    (
        "failed_retention",
        DURATION,
        "Delete failed tasks after this; 0 keeps them. Unless given they leave as others do.",
    ),
    ("expiry_grace", DURATION, "How long a lease must be over before its task goes to another worker."),
)


def monitor_options(function: Function) -> Function:
    return monitor_options_with()(function)


def monitor_options_with(**defaults: float) -> Callable[[Function], Function]:
    """With other defaults than a monitor's own."""
    return lambda function: _with_options(function, defaults)


def _with_options(function: Function, defaults: dict[str, float]) -> Function:
    for name, kind, text in reversed(OPTIONS):
        flag = f"--{name.replace('_', '-')}"
        default = defaults.get(name, getattr(DEFAULTS, _FIELDS.get(name, name)))
        function = option(flag, type=kind, default=default, var=_PREFIX + name.upper(), help=text)(function)
    return function


def monitor_settings(given: dict[str, Any]) -> MonitorSettings:
    if given["check_interval"] <= 0:
        raise click.BadParameter("must be above 0.", param_hint="--check-interval")
    return MonitorSettings(**{_FIELDS.get(name, name): given[name] for name, _, _ in OPTIONS})
