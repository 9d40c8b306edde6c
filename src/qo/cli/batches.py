"""`qo batch`: the progress of tasks that were submitted together."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import click
from msgspec.structs import asdict
from rich.live import Live
from rich.table import Table
from rich.text import Text

from qo.cli.context import DURATION, CommandGroup, Invocation, common, examples, option
from qo.cli.exit_codes import Exit
from qo.cli.output import duration
from qo.cli.rich_output import bar, data, table
from qo.client import Client
from qo.client.batches import BatchProgress, find_batch, list_batches, pause_between, read_progress
from qo.clock import boot_clock
from qo.errors import TaskNotFound
from qo.model import check_batch_id, plural

_BAR_WIDTH = 30


@click.group(
    "batch",
    cls=CommandGroup,
    epilog=examples("qo batch list", "qo batch show thumbnails-3f9a0c2b", "qo batch watch thumbnails"),
)
@common
def command(call: Invocation) -> None:
    """Show the progress of batches: tasks that were submitted together with `qo.batch` or `qo submit --batch`."""
    click.get_current_context().find_root().obj = call  # options given before `list` apply to it


@command.command("list", epilog=examples("qo batch list", "qo batch list --json | jq '.batches[].id'"))
@common
@option("--limit", type=click.IntRange(1, 500), default=50, help="Maximum number of batches.")
def list_(call: Invocation, limit: int) -> None:
    """List the batches of the 1,000 newest tasks, newest first."""
    batches = call.run(lambda client: list_batches(client.engine, limit=limit))
    if call.json:
        call.print_json({"batches": [view(batch) for batch in batches]})
        return
    if not batches:
        call.console.print(Text("no batches among the newest tasks", style="dim"))
        return
    call.console.print(batch_table(batches))


@command.command("show", epilog=examples("qo batch show thumbnails-3f9a0c2b --json"))
@common
@click.argument("batch")
def show(call: Invocation, batch: str) -> None:
    """Show how many tasks of a BATCH have finished, and how long the others may take.

    BATCH is an id, or the name that `qo.batch` was given: then the newest batch of that name is shown.
    """
    check_batch_id("batch", batch)
    progress = call.run(lambda client: _find(client, batch))
    if call.json:
        call.print_json(view(progress))
    else:
        call.console.print(_line(progress))


@command.command("watch", epilog=examples("qo batch watch thumbnails-3f9a0c2b"))
@common
@click.argument("batch")
@option("--interval", type=DURATION, default=1.0, help="Time between two updates.")
def watch(call: Invocation, batch: str, interval: float) -> int:
    """Watch a BATCH, by its id or its name, until all its tasks have finished. Exits with code 1 if some failed."""
    check_batch_id("batch", batch)
    progress = call.run(lambda client: _watch(call, client, batch, max(0.1, interval)))
    if call.json:
        call.print_json(view(progress))
    return Exit.ERROR if progress.failed else Exit.CLEAN


async def _find(client: Client, batch: str) -> BatchProgress:
    progress = await find_batch(client.engine, batch)
    if not progress.total:
        raise TaskNotFound(f"there is no batch {batch}; see `qo batch list`")
    return progress


async def _watch(call: Invocation, client: Client, batch: str, interval: float) -> BatchProgress:
    progress = first = await _find(client, batch)
    if call.json or not call.console.is_terminal:
        async for progress in _updates(client, first, interval):  # noqa: B007 - the last one is shown
            pass
        if not call.json:
            call.console.print(_line(progress))
        return progress
    with Live(_line(first), console=call.console, auto_refresh=False) as live:
        async for progress in _updates(client, first, interval):
            live.update(_line(progress), refresh=True)
    return progress


async def _updates(client: Client, progress: BatchProgress, interval: float) -> AsyncIterator[BatchProgress]:
    """The progress after each pause, until all tasks have finished."""
    duration = 0.0
    while progress.is_waiting:
        await asyncio.sleep(pause_between(duration, interval))
        began = boot_clock()
        progress = await read_progress(client.engine, progress.id)
        duration = boot_clock() - began
        yield progress


def batch_table(batches: list[BatchProgress]) -> Table:
    rows = table(
        "batch", "done", "total", "failed", "running", "progress", right=("done", "total", "failed", "running")
    )
    for batch in batches:
        numbers = (batch.done, batch.total, batch.failed, batch.running)
        rows.add_row(data(batch.id), *(Text(f"{number:,}") for number in numbers), _bar(batch))
    return rows


def view(progress: BatchProgress) -> dict[str, Any]:
    return asdict(progress) | {"done": progress.done, "fraction": progress.fraction}


def _bar(progress: BatchProgress) -> Text:
    style = "red" if progress.failed else "green"
    filled = bar(progress.fraction, _BAR_WIDTH, style)
    return Text.assemble(filled, " " * (_BAR_WIDTH - len(filled)), f" {progress.fraction:4.0%}")


def _line(progress: BatchProgress) -> Text:
    counts = f"  {progress.done:,} of {plural(progress.total)} done"
    failed = (f", {progress.failed:,} failed", "red") if progress.failed else ""
    running = f", {progress.running:,} running" if progress.running else ""
    left = f", about {duration(progress.eta)} left" if progress.eta is not None else ""
    return Text.assemble((progress.id, "bold"), " ", _bar(progress), counts, failed, running, left)
