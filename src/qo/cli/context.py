"""One invocation of the command line: which store it uses, and how it prints its output."""

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from qo.cli.output import as_json
from qo.cli.params import DURATION
from qo.cli.progress_bar import shown_progress
from qo.destinations import DEFAULT_URL, default_url
from qo.errors import StorageError
from qo.url_secrets import hide_password

if TYPE_CHECKING:
    from rich.console import Console

    from qo.client import Client, Settings

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])
_UNITS = ((86_400.0, "d"), (3600.0, "h"), (60.0, "m"))


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

    def run(self, work: Callable[["Client"], Awaitable[T]], *, create: bool = False) -> T:
        """Open a client, await `work`, close the client.

        Raises StorageError if the store does not exist, unless `create` is set: only commands that write to a new
        store set it.
        """
        import asyncio  # noqa: PLC0415 - help texts do not import it

        with shown_progress():
            return asyncio.run(self._session(work, create=create))

    async def _session(self, work: Callable[["Client"], Awaitable[T]], *, create: bool) -> T:
        from qo.client import connect  # noqa: PLC0415 - help texts and supervisors do not import these
        from qo.engines import is_missing  # noqa: PLC0415 - as above

        if not create and is_missing(self.url):  # opening it would create it
            raise StorageError(
                f"no store exists at {self.shown_url}; submit a task or start a worker to create it, "
                "or choose another store with --url or QO_URL"
            )
        async with connect(self.url) as client:
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
    size, unit = next((pair for pair in _UNITS if seconds and not seconds % pair[0]), (1.0, "s"))
    return f"{seconds / size:g}{unit}"


def examples(*lines: str) -> str:
    """An epilog that click does not rewrap."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
