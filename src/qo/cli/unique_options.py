"""Options of `qo submit` for tasks that are submitted once."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from qo.cli.context import DURATION, option
from qo.model import Unique

Function = TypeVar("Function", bound=Callable[..., Any])


def unique_options(function: Function) -> Function:
    """Add the options that `pop_unique` reads."""
    for add in reversed(
        (
            option("--unique", metavar="args|NAMES", help="Submit once: the same payload, or the same fields (a,b)."),
            option("--unique-within", type=DURATION, help="With --unique: for at least this long, also after its end."),
            option(
                "--unique-until",
                type=click.Choice(["started", "finished"]),
                help="With --unique: until then.  [default: finished]",
            ),
            option(
                "--on-duplicate",
                type=click.Choice(["keep", "replace", "raise"]),
                help="With --unique: what happens to a duplicate.  [default: keep]",
            ),
        )
    ):
        function = add(function)
    return function


def pop_unique(given: dict[str, Any]) -> Unique | None:
    """Take the options out of `given`. Raises UsageError if --unique is missing."""
    names = given.pop("unique")
    details = {
        "within": given.pop("unique_within"),
        "until": given.pop("unique_until"),
        "on_duplicate": given.pop("on_duplicate"),
    }
    details = {name: value for name, value in details.items() if value is not None}
    if names is None:
        if details:
            raise click.UsageError("--unique-within, --unique-until and --on-duplicate need --unique args|NAMES.")
        return None
    by = names if names == "args" else tuple(name.strip() for name in names.split(",") if name.strip())
    return Unique(by=by, **details)
