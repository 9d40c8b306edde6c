"""One invocation of the command line: types of parameters, which store it uses, and how it prints its output."""

import functools
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qo.cli.completion import complete_queues, complete_types
from qo.cli.output import as_json, shown_progress
from qo.clock import parse_duration
from qo.destinations import DEFAULT_URL, default_url
from qo.errors import InvalidSetting, InvalidTask, StorageError
from qo.model import LEVELS, PendingKind, Status, check_name, check_type
from qo.safe_text import hide_password

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from rich.console import Console

    from qo.client import Client, Settings


Complete = Callable[[click.Context, str], "list[CompletionItem]"]

_HEX = "0123456789abcdef"
_SHARD_RANGE = re.compile(r"([0-9a-f])(?:-([0-9a-f]))?")


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Seconds, or a number with a unit: 90, 90s, 5m, 2h, 7d."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        seconds = parse_duration(str(value))
        if seconds is None:
            self.fail(f"{value!r:.80} is not a duration such as 90, 90s, 5m, 2h or 7d.", param, ctx)
        return seconds


class Names(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Names separated by commas."""

    name = "names"

    def __init__(
        self, field: str, check: Callable[[str, str], str] = check_name, complete: Complete | None = None
    ) -> None:
        self._field, self._check = field, check
        self._complete = complete or (complete_queues if field == "queue" else None)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":  # noqa: ARG002 - click's signature
        return self._complete(ctx, incomplete) if self._complete else []

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        given = [name for part in str(value).split(",") if (name := part.strip())]
        if not given:  # an empty variable of a script must not select all tasks
            self.fail(f"{value!r:.80} contains no name; leave out the option for all.", param, ctx)
        try:
            return tuple(self._check(self._field, name) for name in given)
        except InvalidTask as error:
            self.fail(f"{error}.", param, ctx)


TYPES = Names("type", check_type, complete_types)


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
STATUS = click.Choice([status.value for status in Status] + [kind.value for kind in PendingKind], case_sensitive=False)
PRIORITIES = ", ".join(f"{name} = {level}" for name, level in LEVELS.items())


class CommandGroup(click.Group):
    """A group whose help shows the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(limit=200)) for name, each in commands if each])


def flatten(lists: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """The values of a repeatable list option as one list, without duplicates."""
    return tuple(dict.fromkeys(name for names in lists for name in names))


def unique(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Ids in lower case, without duplicates."""
    return tuple(dict.fromkeys(task_id.strip().lower() for task_id in ids))


T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
_SHOWN_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"))


class Invocation:
    """The values of `--url` and `--json`, given before or after the command's name."""

    def __init__(self, *, url: str | None = None, json: bool = False) -> None:
        self.given_url = url  # None: --url was not given
        self.json = json

    @property
    def url(self) -> str:
        return self.given_url or default_url()

    @property
    def shown_url(self) -> str:
        return hide_password(self.url)

    @property
    def settings(self) -> "Settings":
        """The client's settings, with the payload limit of the store if it is known without opening the store."""
        from msgspec.structs import replace  # noqa: PLC0415 - help texts and supervisors do not import these

        from qo.client import connect  # noqa: PLC0415 - as above

        client = connect(self.url)
        return (
            client.settings if client.engine.is_remote else replace(client.settings, payload_limit=client.payload_limit)
        )

    @property
    def console(self) -> "Console":
        from qo.cli.rich_output import console  # noqa: PLC0415 - not needed for JSON

        return console()

    def print_json(self, value: Any) -> None:
        """Print the command's JSON document to stdout."""
        click.echo(as_json(value))

    def run(self, work: Callable[["Client"], Awaitable[T]], *, create: bool = False, in_memory: bool = False) -> T:
        """Open a client, await `work`, close the client.

        Raises StorageError if the store does not exist, unless `create` is set: only commands that write to a new
        store set it. These refuse memory://, which would lose what they write, unless `in_memory` is set.
        """
        import asyncio  # noqa: PLC0415 - help texts do not import it

        if create and not in_memory and self.url.lower().startswith("memory://"):
            raise InvalidSetting("memory:// is lost when this command ends; choose another store with --url or QO_URL")
        with shown_progress():
            return asyncio.run(self._session(work, create=create))

    async def _session(self, work: Callable[["Client"], Awaitable[T]], *, create: bool) -> T:
        from qo.client import connect  # noqa: PLC0415 - help texts and supervisors do not import these
        from qo.encryption import Encrypted  # noqa: PLC0415 - as above
        from qo.engines import is_missing  # noqa: PLC0415 - as above

        if not create and is_missing(self.url):  # opening it would create it
            raise StorageError(
                f"no store exists at {self.shown_url}; submit a task or start a worker to create it, "
                "or choose another store with --url or QO_URL"
            )
        async with connect(self.url, codec=Encrypted.from_environment()) as client:
            return await work(client)


def common(function: Function) -> Function:
    """Add `--url` and `--json` to a command; the function gets an `Invocation` as its first argument."""

    @click.option(
        "--url",
        metavar="URL",
        help=f"The store to use.  [env var: QO_URL or S3_BUCKET; default: {DEFAULT_URL}]",
        default=None,
    )
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document to stdout.")
    @click.pass_context
    @functools.wraps(function)
    def command(ctx: click.Context, /, *args: Any, url: str | None, as_json: bool, **kwargs: Any) -> Any:
        root = ctx.find_root().obj
        outer = root if isinstance(root, Invocation) else Invocation()
        call = Invocation(url=url or outer.given_url, json=as_json or outer.json)
        return function(call, *args, **kwargs)

    return cast("Function", command)


def option(*names: str, var: str | None = None, **settings: Any) -> Callable[[Function], Function]:
    """A click option whose help text names its environment variable and its default."""
    default = settings.get("default")
    if settings.get("type") is DURATION and default is not None:
        settings["default"] = _duration(default)  # as text, which the help shows and DURATION parses
    settings.setdefault("show_default", default not in (None, (), ""))
    return click.option(*names, envvar=var, show_envvar=var is not None, **settings)


def _duration(seconds: float) -> str:
    size, unit = next((pair for pair in _SHOWN_UNITS if seconds and not seconds % pair[0]), (1.0, "s"))
    return f"{seconds / size:g}{unit}"


def examples(*lines: str) -> str:
    """An epilog that click does not rewrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
