"""`qo`: its commands, which are imported when they are called, and the exit codes of errors."""

import errno
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple, Never

import click
from click.shell_completion import get_completion_class

from qo.cli.context import Invocation, common, examples
from qo.cli.exit_codes import MEANINGS, Exit, code_of
from qo.cli.output import echo, print_error, print_json_error
from qo.destinations import DEFAULT_URL
from qo.errors import InvalidSetting, QoError
from qo.version import __version__


class CommandSpec(NamedTuple):
    home: str  # module and attribute
    summary: str


COMMANDS = {  # in the order of the help text
    "submit": CommandSpec("submit:command", "Submit one task, or many from a file."),
    "status": CommandSpec("read_tasks:status", "Show the status of tasks."),
    "history": CommandSpec("read_tasks:history", "Show everything that happened to a task."),
    "logs": CommandSpec("read_tasks:logs", "Show what a task's handler logged."),
    "list": CommandSpec("list_tasks:list_", "List tasks, newest first."),
    "stats": CommandSpec("stats:command", "Count tasks by status, type and queue."),
    "batch": CommandSpec("batches:command", "Show the progress of tasks that were submitted together."),
    "workflow": CommandSpec("workflows:command", "Show, cancel and replay workflows."),
    "top": CommandSpec("top:command", "Watch the queue live."),
    "worker": CommandSpec("worker:command", "Run a worker."),
    "workers": CommandSpec("workers:command", "List workers, or ask them to drain."),
    "monitor": CommandSpec("monitor:command", "Recover tasks of dead workers and apply retention."),
    "explain": CommandSpec("read_tasks:explain", "Explain why a task is waiting."),
    "wait": CommandSpec("read_tasks:wait", "Wait until tasks have finished."),
    "run-now": CommandSpec("bulk_actions:run_now", "Run scheduled or retrying tasks now."),
    "reschedule": CommandSpec("bulk_actions:reschedule", "Change when pending tasks run."),
    "priority": CommandSpec("bulk_actions:priority", "Change the priority of pending tasks."),
    "replay": CommandSpec("bulk_actions:replay", "Run failed or cancelled tasks again."),
    "cancel": CommandSpec("bulk_actions:cancel", "Cancel pending and running tasks."),
    "archive": CommandSpec("bulk_actions:archive", "Archive finished tasks."),
    "delete": CommandSpec("bulk_actions:delete", "Delete finished tasks."),
    "pause": CommandSpec("controls:pause", "Stop workers from starting tasks."),
    "resume": CommandSpec("controls:resume", "Let workers start tasks again after a pause."),
    "limit": CommandSpec("controls:limit", "Limit start rates, concurrency and the number of task types."),
    "schedules": CommandSpec("schedules:command", "List schedules, or add, pause, run and remove one."),
    "serve": CommandSpec("serve:command", "Run the HTTP API and dashboard."),
    "token": CommandSpec("access:token_command", "Manage API tokens."),
    "session": CommandSpec("access:session_command", "List dashboard logins and end them."),
    "encryption-key": CommandSpec("encryption_key:command", "Print a new key for encrypted payloads."),
    "audit": CommandSpec("audit:command", "Show the audit trail."),
    "doctor": CommandSpec("doctor:command", "Check a store for damage and wrong settings."),
    "migrate": CommandSpec("store_setup:migrate", "Create or update a store's tables."),
    "bucket-setup": CommandSpec("store_setup:bucket_setup", "Prepare a bucket."),
    "dashboard": CommandSpec("dashboard:command", "Publish the dashboard to a bucket and create links to it."),
    "completion": CommandSpec("group:completion", "Print the completion script for your shell."),
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


# What other queues and tools call a command.
OTHER_NAMES = {
    **dict.fromkeys(("show", "get", "inspect", "info", "result", "describe"), ("status",)),
    **dict.fromkeys(("enqueue", "push", "add", "send", "call", "delay"), ("submit",)),
    **dict.fromkeys(("retry", "requeue"), ("replay", "run-now")),
    **dict.fromkeys(("revoke", "abort", "kill", "stop"), ("cancel",)),
    **dict.fromkeys(("purge", "empty", "rm", "remove", "clear", "flush"), ("cancel", "delete")),
    **dict.fromkeys(("ls", "tasks", "jobs", "queues"), ("list", "stats")),
    **dict.fromkeys(("beat", "cron", "scheduler", "periodic"), ("schedules",)),
    **dict.fromkeys(("run", "start", "consumer", "work"), ("worker",)),
    **dict.fromkeys(("dashboard-server", "ui", "web", "server", "flower"), ("serve",)),
    **dict.fromkeys(("events", "watch", "monitoring"), ("top", "history")),
    "log": ("logs",),
    "why": ("explain",),
    "progress": ("batch", "status"),
}

# Names that other commands have for an option.
OTHER_OPTIONS = {"--delay": "--in", "--run-at": "--at", "--priority": "--to", "--level": "--to"}


# The disk to which stdout is written is full. An engine raises StorageError for the disk of a store.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# The error of a group without a command; its message is the help text. Older versions of click have no such error.
_NO_COMMAND: type[click.UsageError] | tuple[()] = getattr(click.exceptions, "NoArgsIsHelpError", ())


class Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].home.partition(":")
        command: click.Command = getattr(import_module(f"qo.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the commands that a mistyped one resembles."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = args[0].lower()
            similar = OTHER_NAMES.get(name) or get_close_matches(name, COMMANDS, cutoff=0.5)
            if similar and args[0] not in COMMANDS:
                meant = " or ".join(f"'qo {name}'" for name in similar)
                raise click.UsageError(f"There is no command '{args[0]}'. Did you mean {meant}?", ctx) from error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write the summaries from COMMANDS, so that `qo --help` imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, spec.summary) for name, spec in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and write the log before anything that is printed about its outcome."""
        try:
            return super().invoke(ctx)
        finally:
            for handler in logging.getLogger("qo").handlers:
                with suppress(OSError):  # `main` discards what stderr does not take
                    handler.flush()

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Never:  # type: ignore[override]
        """Run the command and exit with the code of its outcome."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra.pop("standalone_mode", None)
        open_missing_streams()
        try:
            result = super().main(arguments, prog_name or "qo", standalone_mode=False, **extra)
            code = result if isinstance(result, int) else Exit.CLEAN
        except click.Abort:
            code = print_failure(arguments, "interrupted", Exit.INTERRUPTED)
        except click.UsageError as error:
            code = print_usage_error(arguments, error)
        except click.ClickException as error:
            code = print_failure(arguments, error.format_message(), Exit.ERROR)
        except QoError as error:
            code = print_failure(arguments, str(error), code_of(error), field=getattr(error, "field", None))
        except Exception as error:  # noqa: BLE001 - printed to the user, with its traceback
            if isinstance(error, OSError) and error.errno in _FULL:
                discard(sys.stdout)
                code = print_failure(arguments, f"cannot write the output: {error.strerror}", Exit.ERROR)
            else:
                code = print_bug(arguments, error)
        try:
            sys.stderr.flush()
        except OSError:  # a worker or server ends with its own code even if its log cannot be written
            discard(sys.stderr)
        sys.exit(int(code))


def open_missing_streams() -> None:
    """Replace stdout and stderr if they are closed. Python sets them to None.

    Otherwise a file or socket could get the descriptor, and with it what libraries print.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the rest of the process


def discard(stream: IO[str]) -> None:
    """Redirect a stream that cannot be written. What is left in its buffer would otherwise fail again at exit, and the
    interpreter would exit with 120.
    """
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def wants_json(args: Sequence[str]) -> bool:
    """Search the raw arguments, because an error while parsing them must be printed as JSON too."""
    options = args[: args.index("--")] if "--" in args else args
    return "--json" in options


def print_failure(args: Sequence[str], message: str, code: Exit, **more: object) -> Exit:
    if wants_json(args):
        print_json_error(message, **more)
    else:
        print_error(message)
    return code


def print_usage_error(args: Sequence[str], error: click.UsageError) -> Exit:
    if error.ctx is not None and isinstance(error, _NO_COMMAND):
        if wants_json(args):
            return print_failure(args, f"Missing command; see '{error.ctx.command_path} --help'.", Exit.USAGE)
        echo(error.format_message(), err=True)
        return Exit.USAGE
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        options = {name for each in error.ctx.command.params for name in each.opts}
        meant = OTHER_OPTIONS.get(error.option_name)
        if meant in options:
            error = click.UsageError(f"{error.message} Did you mean '{meant}'?", error.ctx)
    param = getattr(error, "param", None)
    print_failure(args, error.format_message(), Exit.USAGE, field=getattr(param, "name", None))
    if not wants_json(args) and error.ctx is not None:
        echo(f"See '{error.ctx.command_path} --help'.", err=True)
    return Exit.USAGE


def print_bug(args: Sequence[str], error: Exception) -> Exit:
    if not wants_json(args):
        echo("".join(traceback.format_exception(error)), err=True)
    return print_failure(args, f"{type(error).__name__}: {error}", Exit.ERROR)


@click.group(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--url",
    metavar="URL",
    default=None,
    help=f"The store to use.  [env var: QO_URL or S3_BUCKET; default: {DEFAULT_URL}]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and errors as JSON to stderr."
)
@click.version_option(__version__, prog_name="qo")
@click.pass_context
def main(ctx: click.Context, url: str | None, as_json: bool) -> None:  # noqa: FBT001 - click passes it by name
    """A task queue that needs no broker.

    The URL selects the store of the tasks; the default is a SQLite file. --url and --json may be given before or after
    the command.
    """
    ctx.obj = Invocation(url=url, json=as_json)


@click.command(
    "completion",
    epilog=examples(
        'eval "$(qo completion bash)"                              # in ~/.bashrc',
        'eval "$(qo completion zsh)"                               # in ~/.zshrc',
        "qo completion fish > ~/.config/fish/completions/qo.fish",
    ),
)
@common
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(call: Invocation, shell: str) -> None:
    """Print the completion script for your shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise InvalidSetting(f"completion is not available for {shell}")
    script = kind(click.get_current_context().find_root().command, {}, "qo", "_QO_COMPLETE").source()
    if call.json:
        call.print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
