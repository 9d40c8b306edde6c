"""`qo stats`: how many tasks there are, by status, type and queue."""

from collections.abc import Mapping
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from qo.cli.activity import show_activity
from qo.cli.context import Invocation, common, examples, option
from qo.cli.params import DURATION
from qo.cli.rich_output import STYLES, bar, data, status_text, table
from qo.cli.unhandled import by_type, unhandled_note
from qo.client import Client
from qo.clock import system_clock
from qo.model import Status
from qo.notes import find_unhandled

WIDTH = 30  # cells of the longest bar


@click.command("stats", epilog=examples("qo stats", "qo stats --json | jq .failed", "qo stats --since 1h"))
@common
@option("--since", type=DURATION, help="What was done in this time, by type, instead: up to 7d, such as 10m or 1h.")
def command(call: Invocation, since: float | None) -> None:
    """Count tasks. With --json: counts by status at the top level, then `by_type`, `by_queue` and `unhandled`.

    `unhandled` counts, by type, the pending tasks that no worker handles now: no running worker has a handler for the
    type in their queue.

    With --since: what became of tasks, how long they waited and ran, as all processes counted it in the store. The
    last hour is known by the minute, what is older by the hour. Counts lag by up to 30 s.
    """
    if since is not None:
        show_activity(call, since)
        return

    async def work(client: Client) -> dict[str, Any]:
        return await client.stats() | {"unhandled": by_type(await find_unhandled(client.engine, system_clock()))}

    stats = call.ask(work)
    if call.json:
        call.answer(stats)
        return
    call.out.print(status_table(stats))
    for title, key in (("by type", "by_type"), ("by queue", "by_queue")):
        if stats[key]:
            call.out.print(Text(), lane_table(title, stats[key]), sep="\n")
    if stats["unhandled"]:
        call.out.print(Text(), unhandled_note(stats["unhandled"]), sep="\n", soft_wrap=True)


def status_table(stats: Mapping[str, Any]) -> Table:
    total = sum(stats[status] for status in Status)
    most = max(1, *(stats[status] for status in Status))
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(justify="right", no_wrap=True)
    rows.add_column(no_wrap=True)
    for status in Status:
        number = stats[status]
        rows.add_row(
            status_text(status),
            Text(f"{number:,}", style="bold" if number else "dim"),
            bar(number / most, WIDTH, STYLES[status]),
        )
    rows.add_row(Text("all", style="dim"), Text(f"{total:,}", style="dim"), "")
    return rows


def lane_table(title: str, lanes: Mapping[str, Mapping[str, int]], *, most: int | None = None) -> Table:
    """A row for each type or queue, a column for each status that occurs."""
    used = [status for status in Status if any(counts.get(status) for counts in lanes.values())]
    rows = table(title, *used, right=[*used])
    for status, column in zip(used, rows.columns[1:], strict=True):
        column.header_style = STYLES[status]
    busiest = sorted(lanes, key=lambda name: (-sum(lanes[name].values()), name))
    for name in busiest[:most]:
        rows.add_row(data(name), *(_number(lanes[name].get(status, 0)) for status in used))
    if most is not None and len(busiest) > most:
        rows.add_row(Text(f"and {len(busiest) - most} more", style="dim"))
    return rows


def _number(number: int) -> Text:
    return Text(f"{number:,}" if number else "·", style="" if number else "dim")
