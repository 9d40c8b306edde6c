"""`qo pause`, `resume` and `limit`: change the controls that all workers read, and show them."""

from typing import Any, Literal

import click
import msgspec
from rich.text import Text

from qo.cli.audit import audited, names_in_words
from qo.cli.context import TYPES, Invocation, Names, common, examples, flatten, option
from qo.client import Client
from qo.model import plural
from qo.notes import Controls
from qo.terminal_text import clean

NameLists = tuple[tuple[str, ...], ...]
_QUEUES = option(
    "--queue", "queues", type=Names("queue"), multiple=True, help="Only these queues; repeat, or use commas."
)
_TYPES = option("--type", "types", type=TYPES, multiple=True, help="Only these types; repeat, or use commas.")


@click.command("pause", epilog=examples("qo pause", "qo pause --queue mail --type crawl"))
@common
@_QUEUES
@_TYPES
def pause(call: Invocation, queues: NameLists, types: NameLists) -> None:
    """Stop all workers from starting tasks, or only tasks of some queues or types. Running tasks continue.

    Workers notice within a second or two.
    """
    _pause_or_resume(call, "pause", queues=flatten(queues), types=flatten(types))


@click.command("resume", epilog=examples("qo resume", "qo resume --queue mail --type crawl"))
@common
@_QUEUES
@_TYPES
def resume(call: Invocation, queues: NameLists, types: NameLists) -> None:
    """Undo `qo pause`: for the named queues or types, or for everything.

    Workers notice within a second or two.
    """
    _pause_or_resume(call, "resume", queues=flatten(queues), types=flatten(types))


@click.command(
    "limit",
    epilog=examples(
        "qo limit 100",
        "qo limit 5 --type send_email",
        "qo limit 0        # no limit",
        "qo limit --max-types 2000",
    ),
)
@common
@click.argument("rate", type=float, required=False)
@option("--type", "type_", metavar="NAME", help="Only tasks of this type; overrides the limit in the code.")
@option(
    "--max-types",
    type=click.IntRange(0, 10_000),
    metavar="N",
    help="How many types of unfinished tasks a queue may have; 0 for no limit.  [default: 1000]",
)
def limit(call: Invocation, rate: float | None, type_: str | None, max_types: int | None) -> None:
    """Let each worker start at most RATE tasks per second, of all types or of one; 0 removes the limit."""
    if rate is None and (max_types is None or type_ is not None):
        raise click.UsageError("Pass a RATE, or --max-types.")

    async def work(client: Client) -> Controls:
        controls = Controls()
        if max_types is not None:
            async with audited(client, "limit", f"{max_types} types"):
                controls = await client.controls.limit_types(max_types)
        if rate is not None:
            async with audited(client, "limit", f"{rate:g} a second" + (f", type {type_}" if type_ else "")):
                controls = await client.controls.limit_rate(rate, type=type_)
        return controls

    _show(call, call.run(work))


def _pause_or_resume(call: Invocation, verb: Literal["pause", "resume"], **names: tuple[str, ...]) -> None:
    async def work(client: Client) -> Controls:
        change = client.controls.pause if verb == "pause" else client.controls.resume
        async with audited(client, verb, names_in_words(**names)):
            return await change(**names)

    _show(call, call.run(work))


def _show(call: Invocation, controls: Controls) -> None:
    if call.json:
        call.print_json(controls_view(controls))
        return
    for line in controls_lines(controls) or [Text("nothing is paused or limited", style="green")]:
        call.console.print(line)


def controls_view(controls: Controls) -> dict[str, Any]:
    view: dict[str, Any] = msgspec.to_builtins(controls)
    return view | {name: sorted(view[name]) for name in ("paused_queues", "paused_types", "draining")}


def controls_lines(controls: Controls) -> list[Text]:
    """One line for each pause, drain and limit."""
    lines = [Text("everything is paused", style="yellow")] if controls.paused else []
    for name, paused in (("queues", controls.paused_queues), ("types", controls.paused_types)):
        if paused:
            lines.append(Text(clean(f"paused {name}: {', '.join(sorted(paused))}"), style="yellow"))
    if controls.draining:
        lines.append(Text(clean(f"draining workers: {', '.join(sorted(controls.draining))}"), style="yellow"))
    if controls.rate_limit:
        lines.append(Text(f"each worker starts at most {plural(controls.rate_limit)} per second", style="cyan"))
    for name, rate in sorted(controls.rate_limits.items()):
        text = f"at most {rate:g} per second" if rate else "no limit, which overrides the limit in the code"
        lines.append(Text(clean(f"{name}: {text}"), style="cyan"))
    if controls.max_types is not None:
        text = f"at most {plural(controls.max_types, 'type')}" if controls.max_types else "any number of types"
        lines.append(Text(f"a queue may have {text} of unfinished tasks", style="cyan"))
    return lines
