"""The options of a monitor, whether it runs alone or beside a worker."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qo.cli.context import option
from qo.cli.params import DURATION
from qo.monitor import MonitorSettings

Function = TypeVar("Function", bound=Callable[..., Any])
DEFAULTS = MonitorSettings()
_PREFIX = "QO_MONITOR_"
_FIELDS = {"expiry_grace": "grace"}  # a worker has a grace of another kind
OPTIONS: "tuple[tuple[str, click.ParamType[Any], str], ...]" = (
    (
        "check_interval",
        DURATION,
        "Between two looks for expired leases and silent workers; beside a worker at most half its lease.",
    ),
    ("worker_health_threshold", DURATION, "Silence after which a worker is taken for dead."),
    ("sweep_interval", DURATION, "Between two tidyings of old tasks; 0 is never."),
    ("sweep_page_size", click.IntRange(1, 10_000), "Tasks looked at in one trip to the store."),
    ("retention", DURATION, "Archive finished tasks after this, delete them after twice this; 0 keeps them."),
    ("expiry_grace", DURATION, "How long a lease must be over before its task goes to another worker."),
)


def monitor_options(function: Function) -> Function:
    for name, kind, text in reversed(OPTIONS):
        flag, default = f"--{name.replace('_', '-')}", getattr(DEFAULTS, _FIELDS.get(name, name))
        function = option(flag, type=kind, default=default, var=_PREFIX + name.upper(), help=text)(function)
    return function


def monitor_settings(given: dict[str, Any]) -> MonitorSettings:
    if given["check_interval"] <= 0:
        raise click.BadParameter("must be above 0.", param_hint="--check-interval")
    return MonitorSettings(**{_FIELDS.get(name, name): given[name] for name, _, _ in OPTIONS})
