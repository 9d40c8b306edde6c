"""`qo`: its commands, loaded when called, and what becomes of errors."""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Never

import click

from qo.cli.context import Invocation
from qo.cli.exit_codes import MEANINGS, Exit, code_of
from qo.cli.output import echo, print_error, print_json_error
from qo.destinations import DEFAULT_URL
from qo.errors import QoError
from qo.version import __version__

COMMANDS = {  # in the order in which one meets them
    "submit": "Submit one task, or many from a file.",
    "status": "Show the status of tasks.",
    "history": "Show everything that happened to a task.",
    "list": "List tasks, newest first.",
    "stats": "Count tasks by status, type and queue.",
    "top": "Watch the queue live.",
    "worker": "Run a worker.",
    "workers": "List workers, or ask them to drain.",
    "monitor": "Recover tasks of dead workers and apply retention.",
    "replay": "Run failed or cancelled tasks again.",
    "cancel": "Cancel pending and running tasks.",
    "archive": "Archive finished tasks.",
    "delete": "Delete finished tasks.",
    "pause": "Stop workers from starting tasks.",
    "resume": "Let workers start tasks again after a pause.",
    "limit": "Limit start rates and the number of task types.",
    "serve": "Run the HTTP API and dashboard.",
    "token": "Manage API tokens.",
    "session": "List dashboard logins and end them.",
    "audit": "Show the audit trail.",
    "doctor": "Check a store for damage and wrong settings.",
    "migrate": "Create or update a store's tables.",
    "bucket-setup": "Prepare a bucket.",
    "dashboard": "Publish the dashboard to a bucket and create links to it.",
    "completion": "Print the completion script for your shell.",
}

EPILOG = "\b\nStart here:\n" + "\n".join(
    (
        """  qo submit --type send_email --input '{"to": "a@example.com"}'""",
        "  qo worker myproject.tasks:app",
        "  qo top",
        "",
        "\b",
        "Exit codes:",
        *(f"  {code.value:<3}  {meaning}" for code, meaning in MEANINGS.items()),
    )
)


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"qo.cli.{cmd_name.replace('-', '_')}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """From the list above, so that help does not import every command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Never:  # type: ignore[override]
        """Run, and leave with the code that says how it went."""
        given = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        try:
            answer = super().main(given, prog_name or "qo", standalone_mode=False, **extra)
            code = answer if isinstance(answer, int) else Exit.CLEAN
        except click.Abort:
            code = tell(given, "interrupted", Exit.INTERRUPTED)
        except click.UsageError as error:
            code = tell_usage(given, error)
        except click.ClickException as error:
            code = tell(given, error.format_message(), Exit.ERROR)
        except QoError as error:
            code = tell(given, str(error), code_of(error), field=getattr(error, "field", None))
        except Exception as error:  # noqa: BLE001 - goes to whoever called us, with its trace
            code = tell_bug(given, error)
        sys.exit(int(code))


def wants_json(args: Sequence[str]) -> bool:
    """Seen in the raw arguments: an error in reading them must answer in JSON too."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def tell(args: Sequence[str], message: str, code: Exit, **more: object) -> Exit:
    if wants_json(args):
        print_json_error(message, **more)
    else:
        print_error(message)
    return code


def tell_usage(args: Sequence[str], error: click.UsageError) -> Exit:
    param = getattr(error, "param", None)
    tell(args, error.format_message(), Exit.USAGE, field=getattr(param, "name", None))
    if not wants_json(args) and error.ctx is not None:
        echo(f"See '{error.ctx.command_path} --help'.", err=True)
    return Exit.USAGE


def tell_bug(args: Sequence[str], error: Exception) -> Exit:
    if not wants_json(args):
        echo("".join(traceback.format_exception(error)), err=True)
    return tell(args, f"{type(error).__name__}: {error}", Exit.ERROR)


@click.group(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--url",
    metavar="URL",
    default=None,
    help=f"The queue to use.  [env var: QO_URL or S3_BUCKET; default: {DEFAULT_URL}]",
)
@click.option("--json", "as_json", is_flag=True, help="Answer with one JSON document on stdout; errors on stderr.")
@click.version_option(__version__, prog_name="qo")
@click.pass_context
def main(ctx: click.Context, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - click's way
    """A task queue that needs no broker.

    Tasks live where the URL says: a SQLite file unless you say otherwise. Both --url and --json may stand before or
    after the command.
    """
    ctx.obj = Invocation(url=url, json=as_json)
