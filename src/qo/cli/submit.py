"""`qo submit`: submit one task from options, or many from a file of JSON lines (`submit_file.py`)."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.text import Text

from qo.cli.context import DURATION, PRIORITIES, Invocation, Names, common, examples, flatten, option
from qo.cli.exit_codes import Exit
from qo.cli.output import compact
from qo.cli.rich_output import status_text
from qo.cli.submit_file import submit_file
from qo.cli.task_lines import NO_ARGUMENTS, encode_payload, read_input
from qo.client import Client, TaskHandle, describe
from qo.clock import system_clock
from qo.codec import shown_text, task_view, to_json
from qo.model import MAX_RETRIES, TIMEOUT, NewTask, Status, Task, Unique
from qo.safe_text import clean_lines

_FOREVER = math.inf
_EXAMPLES = examples(
    """qo submit --type send_email --input '{"to": "a@example.com"}' --priority high""",
    "qo submit --type report --input @report.json --delay 2h --idempotency-key report-2030-01",
    'qo submit --type add --input \'{"a": 1, "b": 2}\' --wait 30',
    "qo submit tasks.jsonl            # one JSON object per line: type, payload, queue, priority, ...",
    "generate | qo submit -           # the same from stdin, submitted as it is read",
)
Function = TypeVar("Function", bound=Callable[..., Any])


def unique_options(function: Function) -> Function:
    """Add the options that `pop_unique` reads."""
    for add in reversed(
        (
            option(
                "--unique",
                metavar="args|NAMES",
                help="Skip duplicates: tasks with the same payload (args), or the same values of these fields (a,b).",
            ),
            option(
                "--unique-within",
                type=DURATION,
                help="With --unique: compare for at least this long, even after the task has finished.",
            ),
            option(
                "--unique-until",
                type=click.Choice(["started", "finished"]),
                help="With --unique: compare until the task has started or finished.  [default: finished]",
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


@click.command("submit", epilog=_EXAMPLES)
@common
@click.argument("file", required=False, metavar="[FILE|-]")
@option("--type", "type_", metavar="NAME", help="Type of the task, which selects its handler.")
@option(
    "--input", "input_", metavar="JSON", help=f"The payload as JSON, @file, or - for stdin.  [default: {NO_ARGUMENTS}]"
)
@option("--queue", metavar="NAME", default="default", help="Queue of the task.")
@option("--priority", metavar="LEVEL", default="medium", help=f"0 to 9, lower first; {PRIORITIES}.")
@option("--delay", type=DURATION, help="Run the task after this delay: 90, 90s, 5m, 2h, 7d.")
@option("--run-at", metavar="TIME", help="Run the task at this ISO 8601 time; UTC unless it has an offset.")
@option("--max-retries", type=int, metavar="N", default=MAX_RETRIES, help="Retries before the task fails permanently.")
@option("--timeout", type=DURATION, default=TIMEOUT, help="Maximum duration of one attempt.")
@option(
    "--needs", type=Names("needs"), multiple=True, help="Capabilities that a worker must have; repeat, or use commas."
)
@option(
    "--idempotency-key",
    metavar="TEXT",
    help="Submitting again with the same key returns the same task.",
)
@option("--id", "id_", metavar="UUID", help="Id of the task.  [default: a new one]")
@option("--trace-id", metavar="TEXT", help="Trace id to store with the task.")
@option("--batch", metavar="NAME", help="Batch that the task belongs to: see qo batch.")
@option("--fair-by", metavar="NAME", help="Argument by whose value workers take turns.")
@unique_options
@option(
    "--wait", type=DURATION, is_flag=False, flag_value=_FOREVER, metavar="[DURATION]",
    help="Wait for the result, for at most this long if a duration is given.",
)  # fmt: skip
@option("--continue-on-error", is_flag=True, help="With a file: skip and report invalid lines, submit the rest.")
def command(call: Invocation, file: str | None, input_: str | None, wait: float | None, **given: Any) -> int:
    """Submit one task from options, or many from a FILE of JSON lines (- is stdin).

    A line has the fields of a task: type, payload, queue, priority, needs, timeout, max_retries, retry, delay, run_at
    (or available_at), idempotency_key, trace_id, id, batch, unique (an object of by, within, until and on_duplicate).
    All lines of a file are checked before the first is submitted. The command returns when the tasks are stored.

    This command does not load an app: it does not know what @app.task declares for a type, such as queue, needs,
    timeout, max_retries, limit or unique. Pass these as options.
    """
    skip_invalid = given.pop("continue_on_error")
    if file is not None:
        _reject_task_options()
        return submit_file(call, file, skip_invalid=skip_invalid)
    if not given["type_"]:
        raise click.UsageError("Pass --type NAME for one task, or a FILE of JSON lines for many.")
    if given["delay"] is not None and given["run_at"] is not None:
        raise click.UsageError("Pass --delay or --run-at, not both.")
    payload = encode_payload(read_input(NO_ARGUMENTS if input_ is None else input_))
    new = describe(call.settings, given["type_"], payload, **_options(given))
    return call.run(lambda client: _submit(call, client, new, wait), create=True)


def _reject_task_options() -> None:
    ctx = click.get_current_context()
    for param in ctx.command.params:
        name = param.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in ("file", "url", "as_json", "continue_on_error"):
            raise click.UsageError(f"{param.opts[0]} applies to one task; in a FILE each line has its own fields.")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if name not in ("type_", "id_", "needs")}
    options |= {"id": given["id_"], "needs": flatten(given["needs"]), "unique": pop_unique(options)}
    return {name: value for name, value in options.items() if value is not None}


async def _submit(call: Invocation, client: Client, new: NewTask, wait: float | None) -> int:
    handle = await client.submit(new)
    if not call.json:
        _show_submitted(call, handle, new)
    elif wait is None:
        call.print_json({"id": handle.id, "new": handle.new})
    if wait is None:
        return Exit.CLEAN
    task = await client.ended(handle.id, timeout=None if wait == _FOREVER else wait)
    if call.json:
        call.print_json(task_view(task, system_clock()) | {"new": handle.new})
    else:
        show_result(call, task)
    return Exit.CLEAN if task.status is Status.COMPLETED else Exit.ERROR


def _show_submitted(call: Invocation, handle: TaskHandle, new: NewTask) -> None:
    """Print only the id to stdout, so that `id=$(qo submit ...)` works."""
    if call.console.is_terminal:
        outcome = ("submitted ", "green") if handle.new else ("already submitted: ", "yellow")
        call.console.print(Text.assemble(outcome, handle.id, (f"  {new.type} on {new.queue}", "dim")))
    else:
        click.echo(handle.id)


def show_result(call: Invocation, task: Task) -> None:
    line = status_text(task.status)
    if task.result is not None:
        line.append(f" {clean_lines(compact(to_json(task.result)))}", style="default")
    elif task.error:
        line.append(f" {clean_lines(shown_text(task.error))}", style="default")
    call.console.print(line, soft_wrap=True)
