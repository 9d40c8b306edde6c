"""`qo submit`: one task from options, or many from a file of JSON lines."""

import math
from typing import Any

import click
from rich.text import Text

from qo.cli import bulk
from qo.cli.context import Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.output import clean_lines, compact
from qo.cli.params import DURATION, PRIORITIES, Names, together
from qo.cli.payload import NOTHING, encode_payload, read_input
from qo.cli.rich_output import status_text
from qo.client import Client, TaskHandle, describe
from qo.clock import system_clock
from qo.codec import task_view, to_json
from qo.model import MAX_RETRIES, TIMEOUT, NewTask, Status, Task

FOREVER = math.inf

EXAMPLES = examples(
    """qo submit --type send_email --input '{"to": "a@example.com"}' --priority high""",
    "qo submit --type report --input @report.json --delay 2h --idempotency-key report-2030-01",
    'qo submit --type add --input \'{"a": 1, "b": 2}\' --wait 30',
    "qo submit tasks.jsonl            # one JSON object a line: type, payload, queue, priority, ...",
    "generate | qo submit -           # the same from stdin, sent as it comes",
)


@click.command("submit", epilog=EXAMPLES)
@common
@click.argument("file", required=False, metavar="[FILE|-]")
@option("--type", "type_", metavar="NAME", help="Type of the task, which selects its handler.")
@option("--input", "input_", metavar="JSON", help=f"The payload as JSON, @file, or - for stdin.  [default: {NOTHING}]")
@option("--queue", metavar="NAME", default="default", help="Queue of the task.")
@option("--priority", metavar="LEVEL", default="medium", help=f"0 to 9, lower first; {PRIORITIES}.")
@option("--delay", type=DURATION, help="Run it this much later: 90, 90s, 5m, 2h, 7d.")
@option("--run-at", metavar="TIME", help="Run it at this time, ISO 8601; UTC unless it has an offset.")
@option("--max-retries", type=int, metavar="N", default=MAX_RETRIES, help="Retries before the task fails permanently.")
@option("--timeout", type=DURATION, default=TIMEOUT, help="Time limit of one attempt.")
@option("--needs", type=Names("needs"), multiple=True, help="Capabilities a worker must have; repeat, or use commas.")
@option(
    "--idempotency-key",
    metavar="TEXT",
    help="Submitting again with the same key returns the same task.",
)
@option("--id", "id_", metavar="UUID", help="The task's id.  [default: a new one]")
@option("--trace-id", metavar="TEXT", help="Stored with the task, for tracing.")
@option(
    "--wait", type=DURATION, is_flag=False, flag_value=FOREVER, metavar="[DURATION]",
    help="Wait for the result, at most this long if given.",
)  # fmt: skip
@option("--continue-on-error", is_flag=True, help="With a file: skip and report invalid lines, submit the rest.")
def command(call: Invocation, file: str | None, input_: str | None, wait: float | None, **given: Any) -> int:
    """Submit one task from options, or many from a FILE of JSON lines (- is stdin).

    A line holds the fields of a task: type, payload, queue, priority, needs, timeout, max_retries, retry, delay,
    run_at (or available_at), idempotency_key, trace_id, id. The lines of a file are all checked before the first is
    submitted. The command returns once the store has the tasks.
    """
    carry_on = given.pop("continue_on_error")
    if file is not None:
        _refuse_mixing()
        return bulk.submit(call, file, carry_on=carry_on)
    if not given["type_"]:
        raise click.UsageError("Give --type NAME for one task, or a FILE of JSON lines for many.")
    if given["delay"] is not None and given["run_at"] is not None:
        raise click.UsageError("--delay and --run-at both say when the task runs; give one.")
    payload = encode_payload(read_input(NOTHING if input_ is None else input_))
    new = describe(call.settings, given["type_"], payload, **_options(given))
    return call.ask(lambda queue: _submit(call, queue, new, wait), create=True)


def _refuse_mixing() -> None:
    ctx = click.get_current_context()
    for param in ctx.command.params:
        name = param.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and name not in ("file", "url", "as_json", "continue_on_error"):
            raise click.UsageError(f"{param.opts[0]} describes one task; in a FILE each line says it for itself.")


def _options(given: dict[str, Any]) -> dict[str, Any]:
    options = {name: value for name, value in given.items() if name not in ("type_", "id_", "needs")}
    options |= {"id": given["id_"], "needs": together(given["needs"])}
    return {name: value for name, value in options.items() if value is not None}


async def _submit(call: Invocation, client: Client, new: NewTask, wait: float | None) -> int:
    submitted = await client.submit(new)
    if not call.json:
        _show_submitted(call, submitted, new)
    elif wait is None:
        call.answer({"id": submitted.id, "new": submitted.new})
    if wait is None:
        return Exit.CLEAN
    task = await client.ended(submitted.id, timeout=None if wait == FOREVER else wait)
    if call.json:
        call.answer(task_view(task, system_clock()) | {"new": submitted.new})
    else:
        _show_result(call, task)
    return Exit.CLEAN if task.status is Status.COMPLETED else Exit.ERROR


def _show_submitted(call: Invocation, submitted: TaskHandle, new: NewTask) -> None:
    """Print only the id to stdout, so that `id=$(qo submit ...)` works."""
    if call.out.is_terminal:
        said = ("submitted ", "green") if submitted.new else ("already there: ", "yellow")
        call.out.print(Text.assemble(said, submitted.id, (f"  {new.type} on {new.queue}", "dim")))
    else:
        click.echo(submitted.id)


def _show_result(call: Invocation, task: Task) -> None:
    line = status_text(task.status)
    if task.result is not None:
        line.append(f" {clean_lines(compact(to_json(task.result)))}", style="default")
    elif task.error:
        line.append(f" {clean_lines(task.error)}", style="default")
    call.out.print(line, soft_wrap=True)
